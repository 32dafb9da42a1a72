// A load for engines of several ranks, and what it was answered.
#pragma once

#include <future>
#include <random>
#include <string>
#include <vector>

#include "engine/tiny.h"
#include "peregrine/engine.h"

namespace peregrine::test {

// Mixed requests: short and long prompts, greedy and sampled, with and without drafts.
inline std::vector<Request> mixed_requests(int count) {
  std::vector<Request> requests;
  std::mt19937 random(11);
  for (int i = 0; i < count; ++i) {
    Request r;
    if (i % 3 == 0) {
      r.prompt = expected_texts()[static_cast<size_t>(i) % expected_texts().size()].prompt;
    } else {
      r.prompt = random_tokens(1 + random() % 120, static_cast<uint32_t>(i));
    }
    r.max_tokens = 4 + static_cast<int>(random() % 20);
    r.sampling.seed = static_cast<uint64_t>(i);
    r.sampling.temperature = i % 2 == 0 ? 0.0 : 0.8;
    r.sampling.logprobs = 0;
    r.draft.mode = i % 4 == 3 ? DraftMode::kOff : DraftMode::kFixed;
    r.draft.drafts = 1 + i % 5;
    requests.push_back(std::move(r));
  }
  return requests;
}

struct Answer {
  Ids tokens;
  std::vector<double> logprobs;  // of the tokens: every bit of the logits shows in them
  EndReason reason = EndReason::kError;
  std::string error;
  bool operator==(const Answer&) const = default;
};

// Few slots and pages, so that requests wait, and small steps, so that prompts come in chunks.
inline EngineOptions small_engine() {
  return {.max_running = 4,
          .max_step_tokens = 64,
          .context_tokens = 512,
          .kv_bytes = 2 << 20,
          .prefill = PrefillMode::kExact,
          .prefix_cache = PrefixCacheMode::kExact};
}

// Answers to the requests whose number leaves `rank` when divided by `dp`.
inline void answer_share(Engine& engine, const std::vector<Request>& requests, int rank, int dp,
                         std::vector<Answer>& answers) {
  std::vector<std::promise<void>> ends(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    if (static_cast<int>(i) % dp != rank) continue;
    engine.submit(requests[i], [&, i](const Event& event) {
      Answer& answer = answers[i];
      answer.tokens.insert(answer.tokens.end(), event.tokens.begin(), event.tokens.end());
      for (const TokenLogprobs& l : event.logprobs) answer.logprobs.push_back(l.chosen.logprob);
      if (!event.finished) return;
      answer.reason = event.reason;
      answer.error = event.error;
      ends[i].set_value();
    });
  }
  for (size_t i = 0; i < requests.size(); ++i)
    if (static_cast<int>(i) % dp == rank) ends[i].get_future().wait();
}

}  // namespace peregrine::test
