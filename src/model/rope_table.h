// Rotary frequencies (spec: model.md section 4), f32 as in the reference: at long range the
// rounding of frequency and of position * frequency is part of the model.
#pragma once

#include <vector>

#include "checkpoint/config.h"

namespace peregrine {

struct RopeSpec {
  int dim = 0;  // rotated dims of a head
  double theta = 0;
  double factor = 1;         // YaRN; 1 = none
  int original_seq_len = 0;  // YaRN
  double beta_fast = 0, beta_slow = 0;
};

// dim / 2 frequencies.
std::vector<float> rope_frequencies(const RopeSpec& spec);

// Layers with ratio 0 and the drafter.
RopeSpec window_rope(const ModelConfig& config);
// Layers with ratio > 0.
RopeSpec compressed_rope(const ModelConfig& config);

}  // namespace peregrine
