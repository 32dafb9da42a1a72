// models/tiny: greedy continuations, logits and drafts against expected.jsonl, and the best tokens
// of the official code against official_top5.jsonl. What may differ is stated in MODEL_CARD.md: one
// code of an FP8 or FP4 activation moves logits by up to `top1_noise` of a prompt.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/drafter.h"
#include "peregrine/error.h"
#include "support/fixtures.h"
#include "support/model_fixture.h"
#include "support/test_backends.h"

namespace peregrine::test {
namespace {

using nlohmann::json;

std::vector<json> lines_of(const std::string& file) {
  std::ifstream in(model_path("tiny/" + file));
  std::vector<json> all;
  for (std::string line; std::getline(in, line);)
    if (!line.empty()) all.push_back(json::parse(line));
  return all;
}

constexpr int kChunk = 256;
// The card's margin below which a best token may change: robust_tokens counts the steps before it.
constexpr double kRobustMargin = 0.4;

// The card's noise between implementations; a prompt's own figure comes from few variants and may
// be smaller by luck.
constexpr double kTypicalNoise = 0.6;

// One prompt of expected.jsonl, run in exact mode with the recorded continuation fed back.
struct Continuation {
  std::vector<int32_t> prompt, continuation;
  std::vector<std::vector<float>> logits;  // that choose continuation[step]
};

// A checkpoint with another tensor in place of one of its own.
class ChangedSource : public TensorSource {
 public:
  ChangedSource(const TensorSource& source, TensorView changed)
      : source_(source), changed_(std::move(changed)) {}
  const TensorView* find(std::string_view name) const override {
    return name == changed_.name ? &changed_ : source_.find(name);
  }
  std::span<const TensorView> tensors() const override { return source_.tensors(); }
  std::span<const std::string> files() const override { return source_.files(); }
  uint64_t total_bytes() const override { return source_.total_bytes(); }

 private:
  const TensorSource& source_;
  TensorView changed_;
};

class Tiny : public ::testing::TestWithParam<std::string> {
 protected:
  Tiny()
      : model_(model_path("tiny"), GetParam(), {.threads = 2, .max_rows = kChunk}),
        expected_(lines_of("expected.jsonl")) {}

  int vocab() const { return model_.checkpoint.config.vocab_size; }
  // The scalar backend runs one of the short prompts.
  bool runs(const json& line) const { return GetParam() != "reference" || line["id"] == 6; }
  // Prompt positions in chunks, the last one's logits; then the rest of `tokens` one by one.
  std::vector<float> prefill(const std::vector<int32_t>& tokens, int64_t length) {
    model_.state->truncate(0, 0);
    std::vector<float> logits;
    for (int64_t at = 0; at < length; at += kChunk) {
      Segment s = ModelUnderTest::segment(0, tokens, at, std::min(at + kChunk, length));
      s.logits = s.start + s.count == length ? 1 : 0;
      logits = model_.run({s});
    }
    return logits;
  }
  Continuation run(const json& line) {
    Continuation r{line["prompt_ids"], line["continuation_ids"], {}};
    auto tokens = r.prompt;
    tokens.insert(tokens.end(), r.continuation.begin(), r.continuation.end());
    const auto prompt = static_cast<int64_t>(r.prompt.size());
    r.logits.push_back(prefill(tokens, prompt));
    for (int64_t pos = prompt; pos + 1 < static_cast<int64_t>(tokens.size()); ++pos)
      r.logits.push_back(model_.run(0, tokens, pos, pos + 1));
    return r;
  }

  ModelUnderTest model_;
  std::vector<json> expected_;
};

// Fed with the recorded text, every step whose margin exceeds the noise gives the recorded token;
// up to `robust_tokens` that is free-running greedy decoding, token for token. The best five
// logits lie within the noise. Also counts agreement with the official code.
TEST_P(Tiny, GreedyContinuationsAndLogits) {
  const auto official = lines_of("official_top5.jsonl");
  int steps = 0, equal = 0, official_steps = 0, official_equal = 0;
  double largest_gap = 0, worst_best = 0, worst_other = 0;
  for (size_t i = 0; i < expected_.size(); ++i) {
    const json& line = expected_[i];
    if (!runs(line)) continue;
    const Continuation r = run(line);
    const int id = line["id"];
    const double noise = line["top1_noise"];
    const int robust = line["robust_tokens"];
    for (size_t step = 0; step < r.continuation.size(); ++step) {
      const auto& logits = r.logits[step];
      const int best = argmax(logits.data(), vocab());
      ++steps;
      equal += best == r.continuation[step] ? 1 : 0;
      const double margin = line["margins"][step];
      if (static_cast<int>(step) < robust || margin > std::max(kRobustMargin, 2 * noise)) {
        EXPECT_EQ(best, r.continuation[step])
            << "prompt " << id << " step " << step << " margin " << margin;
      }
      if (step < line["top5"].size()) {
        const std::vector<std::pair<int, double>> top = line["top5"][step];
        for (size_t k = 0; k < top.size(); ++k) {
          const double moved = std::abs(logits[static_cast<size_t>(top[k].first)] - top[k].second);
          double& worst = k == 0 ? worst_best : worst_other;
          worst = std::max(worst, moved / std::max(noise, kTypicalNoise));
        }
      }
      if (i >= official.size()) continue;
      const std::vector<std::pair<int, double>> top = official[i]["top5"][step];
      ++official_steps;
      official_equal += best == top[0].first ? 1 : 0;
      if (best != top[0].first) {
        const double gap = top[0].second - top[1].second;
        largest_gap = std::max(largest_gap, gap);
        std::printf("prompt %d step %zu: official %d, here %d; official gap %.3f, here %.3f\n", id,
                    step, top[0].first, best, gap,
                    logits[static_cast<size_t>(best)] - logits[static_cast<size_t>(top[0].first)]);
      }
    }
  }
  std::printf(
      "%s: %d of %d tokens as expected; official code: %d of %d agree, largest gap at a "
      "disagreement %.3f; logits moved by %.2f (best) and %.2f (next four) of the noise\n",
      GetParam().c_str(), equal, steps, official_equal, official_steps, largest_gap, worst_best,
      worst_other);
  // Between two correct implementations a best token changes only within the noise.
  EXPECT_LT(largest_gap, kRobustMargin);
  EXPECT_GE(official_equal, official_steps * 98 / 100);
  // The noise is the spread of a few variants around the recorded one; an implementation of its own
  // and the recorded one may lie at opposite ends.
  EXPECT_LT(worst_best, 2);
  EXPECT_LT(worst_other, 2);
}

// The drafter's first block (of prompts that take little time), after the first token of the
// continuation.
TEST_P(Tiny, Drafts) {
  const int block = model_.checkpoint.config.dspark_block_size;
  Drafter drafter(*model_.backend, model_.checkpoint.config, *model_.weights, *model_.state, block,
                  1);
  int drafts = 0, equal = 0;
  double worst_confidence = 0;
  for (const json& line : expected_) {
    if (!runs(line) || line["prompt_ids"].size() > 1000) continue;
    const std::vector<int32_t> prompt = line["prompt_ids"];
    const std::vector<int32_t> want = line["draft_after_first"];
    const std::vector<double> confidence = line["draft_confidence"];
    prefill(prompt, static_cast<int64_t>(prompt.size()));
    int32_t previous = line["continuation_ids"][0];
    const DraftSegment segment{.slot = 0,
                               .position = static_cast<int64_t>(prompt.size()),
                               .anchor = previous,
                               .count = block};
    drafter.begin({&segment, 1});
    for (int i = 0; i < block; ++i) {
      const int active = 0;
      drafter.next(i, {&active, 1}, {&previous, 1});
      const int draft = argmax(model_.copy(drafter.logits()).data(), vocab());
      const double raw = model_.copy(drafter.confidence())[0];
      const double difference =
          std::abs(1 / (1 + std::exp(-raw)) - confidence[static_cast<size_t>(i)]);
      worst_confidence = std::max(worst_confidence, difference);
      ++drafts;
      equal += draft == want[static_cast<size_t>(i)] ? 1 : 0;
      if (draft != want[static_cast<size_t>(i)])
        std::printf("prompt %d slot %d: draft %d, expected %d (confidence %.2f)\n",
                    line["id"].get<int>(), i, draft, want[static_cast<size_t>(i)],
                    confidence[static_cast<size_t>(i)]);
      previous = want[static_cast<size_t>(i)];
    }
  }
  std::printf("%s: %d of %d drafts as expected, worst confidence difference %.3f\n",
              GetParam().c_str(), equal, drafts, worst_confidence);
  EXPECT_GE(equal, drafts * 9 / 10);
  EXPECT_LT(worst_confidence, 0.15);
}

INSTANTIATE_TEST_SUITE_P(Backends, Tiny, ::testing::ValuesIn(backends()),
                         [](const auto& info) { return info.param; });

// A block scale of 2^100: the CUDA kernels could not widen its weights exactly.
TEST_P(Tiny, ScalesThatKernelsCannotUseAreRefusedAtLoad) {
  const TensorSource& source = *model_.checkpoint.source;
  for (const std::string name : {"layers.0.attn.wq_b.scale", "layers.1.ffn.experts.2.w2.scale"}) {
    SCOPED_TRACE(name);
    const TensorView* found = source.find(name);
    ASSERT_NE(found, nullptr);
    std::vector<std::byte> codes(found->data, found->data + found->bytes);
    codes.back() = std::byte{227};
    TensorView view = *found;
    view.data = codes.data();
    const ChangedSource changed(source, view);
    const auto backend =
        make_test_backend(GetParam(), model_.checkpoint.config, Weights::numerics(source));
    const auto load = [&] { Weights(model_.checkpoint.config, changed, *backend); };
    if (!GetParam().starts_with("cuda")) {
      EXPECT_NO_THROW(load());
      continue;
    }
    try {
      load();
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kBadCheckpoint);
      EXPECT_NE(std::string(error.what()).find("'" + name + "' has the block scale 2^100"),
                std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace peregrine::test
