// What a request may ask of the sampler. Plain data; validate() is the only gate, so everything
// behind it assumes values in range.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace peregrine {

inline constexpr int kMaxTopLogprobs = 20;

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

  bool greedy() const { return temperature == 0.0; }
  // Whether token counts of the sequence are needed at all.
  bool uses_counts() const {
    return repetition_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0;
  }
};

// Throws Error(kInvalidArgument) naming the first field out of range.
void validate(const SamplingParams& params, int vocab_size);

}  // namespace peregrine
