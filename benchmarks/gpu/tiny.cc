#include "tiny.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>

#include "engine/generator.h"
#include "peregrine/model.h"
#include "peregrine/session.h"

namespace peregrine::bench {

void tiny(const std::string& path) {
  constexpr int kTokens = 400, kDrafts = 5;
  const auto model = Model::load(path, {.device = "cuda"});
  const std::vector<int32_t> prompt =
      model->encode("Once upon a time there was a brave fox named Ruby who lived in a forest.");
  fmt::print("\nmodels/tiny, one sequence, greedy, {} tokens\n{:<10}{:>10}{:>12}{:>14}\n", kTokens,
             "drafts", "tokens/s", "us a step", "tokens a step");
  for (const int drafts : {0, kDrafts}) {
    for (const bool warm : {false, true}) {
      Session session(model, {.context_tokens = 2048, .draft_rows = drafts});
      session.sync(prompt);
      GenerateOptions options;
      options.sampling.temperature = 0;
      options.max_tokens = kTokens;
      if (drafts > 0) options.draft = {.mode = DraftMode::kFixed, .drafts = drafts, .threshold = 0};
      Generator generator(session, options);
      int64_t tokens = 0, steps = 0;
      // The first steps of a shape record its graph.
      auto start = std::chrono::steady_clock::now();
      while (generator.end() == GenerateEnd::kRunning) {
        if (steps == 8) {
          start = std::chrono::steady_clock::now();
          tokens = 0;
        }
        tokens += static_cast<int64_t>(generator.next().size());
        ++steps;
      }
      if (!warm) continue;
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      const auto timed = static_cast<double>(steps - 8);
      fmt::print("{:<10}{:>10.0f}{:>12.1f}{:>14.2f}\n", drafts,
                 static_cast<double>(tokens) / seconds.count(), seconds.count() / timed * 1e6,
                 static_cast<double>(tokens) / timed);
      std::fflush(stdout);
    }
  }
}

}  // namespace peregrine::bench
