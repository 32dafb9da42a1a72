// UE8M0: a power-of-two scale, value 2^(byte - 127), 255 = NaN (spec/quantization.md, sections 1
// and 2).
#pragma once

#include <cstdint>

#include "formats/host_device.h"

namespace peregrine {

inline constexpr float kInverse448 = 1.0f / 448.0f;  // bits 3B124925
inline constexpr float kInverse6 = 1.0f / 6.0f;      // bits 3E2AAAAB

PEREGRINE_HD inline float e8m0_value(uint8_t byte) {
  if (byte == 0) return float_from_bits(0x00400000u);  // 2^-127, a float subnormal
  if (byte == 255) return float_from_bits(0x7FC00000u);
  return float_from_bits(static_cast<uint32_t>(byte) << 23);
}

// The byte of 2^ceil(log2(amax * c)), from the bits of the float product: no logarithm, so no
// rounding near powers of two. `amax` is not negative and already raised to its minimum; `c` is
// kInverse448 or kInverse6. An infinite or NaN product gives 255.
PEREGRINE_HD inline uint8_t e8m0_ceil_scale(float amax, float c) {
  const uint32_t bits = float_bits(amax * c) & 0x7FFFFFFFu;
  if (bits >= 0x7F800000u) return 255;
  const uint32_t above_power = (bits & 0x007FFFFFu) != 0 ? 1u : 0u;
  return static_cast<uint8_t>((bits >> 23) + above_power);
}

}  // namespace peregrine
