// What a request may ask of generation: sampling, drafts, log-probabilities. Plain data.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace peregrine {

struct OutputConstraint;  // sampling/output_constraint.h

inline constexpr int kMaxTopLogprobs = 20;
inline constexpr int kMaxDrafts = 16;

struct SamplingParams {
  double temperature = 1.0;         // 0..2; 0 = greedy (argmax, lowest id on equal logits)
  double top_p = 1.0;               // (0, 1]; 1 = off
  int top_k = 0;                    // 0 or -1 = off
  double min_p = 0.0;               // 0..1, relative to the most probable token; 0 = off
  double repetition_penalty = 1.0;  // > 0; 1 = off; counts prompt and output
  double presence_penalty = 0.0;    // -2..2; counts output only
  double frequency_penalty = 0.0;   // -2..2; counts output only
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // token id, -100..100
  std::optional<uint64_t> seed = {};                       // absent: the engine draws one
  std::optional<int> logprobs = {};  // absent: none; n: the chosen token and the top n (0..20)
  std::shared_ptr<const OutputConstraint> constraint = {};  // of the output's text; absent: none

  bool greedy() const { return temperature == 0.0; }
  // Whether token counts of the sequence are needed at all.
  bool uses_counts() const {
    return repetition_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0;
  }
};

enum class VerifyMethod { kBlock, kRejection };

enum class DraftMode {
  kOff,
  kFixed,  // up to `drafts`, cut by confidence
  kAuto,   // the cost model chooses every step, and may choose not to draft
};

struct DraftOptions {
  DraftMode mode = DraftMode::kOff;
  int drafts = 0;          // 1 .. kMaxDrafts for kFixed; the longest block for kAuto
  double threshold = 0.3;  // survival below which a slot is not verified (kFixed)
  VerifyMethod verify = VerifyMethod::kBlock;
};

struct TokenLogprob {
  int32_t id = 0;
  double logprob = 0.0;  // natural logarithm; minus infinity for a logit of minus infinity
};

struct TokenLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // descending, lower id first on equal logits
};

}  // namespace peregrine
