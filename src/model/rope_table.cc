#include "model/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace peregrine {

std::vector<float> rope_frequencies(const RopeSpec& spec) {
  const int pairs = spec.dim / 2;
  std::vector<float> f(static_cast<size_t>(pairs));
  for (int i = 0; i < pairs; ++i) {
    // Two f32 roundings, of the power and of its reciprocal.
    const auto power = static_cast<float>(std::pow(spec.theta, 2.0 * i / spec.dim));
    f[static_cast<size_t>(i)] = 1.0f / power;
  }
  if (spec.factor == 1) return f;

  const auto bound = [&](double rotations) {
    return spec.dim * std::log(spec.original_seq_len / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(spec.theta));
  };
  const auto low = static_cast<float>(std::max(std::floor(bound(spec.beta_fast)), 0.0));
  const auto high =
      static_cast<float>(std::min<double>(std::ceil(bound(spec.beta_slow)), spec.dim - 1));
  const float width = std::max(high - low, 0.001f);
  const auto factor = static_cast<float>(spec.factor);
  for (int i = 0; i < pairs; ++i) {
    const float ramp = std::clamp((static_cast<float>(i) - low) / width, 0.0f, 1.0f);
    float& value = f[static_cast<size_t>(i)];
    value = value / factor * ramp + value * (1.0f - ramp);
  }
  return f;
}

RopeSpec window_rope(const ModelConfig& config) {
  return {.dim = config.rope_head_dim, .theta = config.rope_theta};
}

RopeSpec compressed_rope(const ModelConfig& config) {
  return {.dim = config.rope_head_dim,
          .theta = config.compress_rope_theta,
          .factor = config.rope_factor,
          .original_seq_len = config.original_seq_len,
          .beta_fast = config.beta_fast,
          .beta_slow = config.beta_slow};
}

}  // namespace peregrine
