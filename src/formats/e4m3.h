// E4M3FN: sign, 4 exponent bits (bias 7), 3 mantissa bits (spec/quantization.md, section 1).
// No infinities; 0x7F and 0xFF are NaN; the largest value is 448, the smallest positive 2^-9.
#pragma once

#include <cstdint>

#include "formats/host_device.h"

namespace peregrine {

inline constexpr float kE4m3Max = 448.0f;

// To nearest, ties to the even code, saturating at +-448; subnormals and the sign of zero are kept.
// Infinities saturate, a NaN gives 0x7F.
PEREGRINE_HD inline uint8_t e4m3_bits(float x) {
  const uint32_t bits = float_bits(x);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  const uint32_t sign = (bits >> 24) & 0x80u;
  if (magnitude > 0x7F800000u) return 0x7F;
  const float a = float_from_bits(magnitude);
  if (a >= kE4m3Max) return static_cast<uint8_t>(sign | 0x7Eu);
  if (a < 0.015625f) {
    // Subnormal codes count multiples of 2^-9. Adding 2^23 leaves no fraction bits, so the
    // addition rounds to nearest even; a result of 8 is the code of 2^-6, as it should be.
    const float shifted = a * 512.0f + 8388608.0f;
    return static_cast<uint8_t>(sign | (float_bits(shifted) - 0x4B000000u));
  }
  // Keep 3 of the 23 mantissa bits; a carry moves into the exponent. Then change the bias.
  const uint32_t tie_to_even = (magnitude >> 20) & 1u;
  const uint32_t rounded = (magnitude + 0x7FFFFu + tie_to_even) >> 20;
  return static_cast<uint8_t>(sign | (rounded - ((127u - 7u) << 3)));
}

PEREGRINE_HD inline float e4m3_value(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t magnitude = code & 0x7Fu;
  if (magnitude == 0x7Fu) return float_from_bits(sign | 0x7FC00000u);
  if (magnitude < 8u) {
    const float value = static_cast<float>(magnitude) * 0.001953125f;  // 2^-9
    return float_from_bits(sign | float_bits(value));
  }
  return float_from_bits(sign | ((magnitude << 20) + ((127u - 7u) << 23)));
}

}  // namespace peregrine
