// E2M1: 4-bit floats 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives (codes 8..15), two a byte with
// the even element in the low nibble (spec/quantization.md, section 1).
#pragma once

#include <cstdint>

#include "formats/host_device.h"

namespace peregrine {

inline constexpr float kE2m1Max = 6.0f;

// To nearest, ties to the even code, saturating at +-6; the sign of zero is kept. There is no NaN
// in this format: a NaN becomes +-6.
PEREGRINE_HD inline uint8_t e2m1_code(float x) {
  const uint32_t bits = float_bits(x);
  const uint8_t sign = static_cast<uint8_t>((bits >> 28) & 8u);
  const float a = float_from_bits(bits & 0x7FFFFFFFu);
  uint8_t code = 7;
  // "<=" where the lower code is the even one and so owns the midpoint.
  if (a <= 0.25f) {
    code = 0;
  } else if (a < 0.75f) {
    code = 1;
  } else if (a <= 1.25f) {
    code = 2;
  } else if (a < 1.75f) {
    code = 3;
  } else if (a <= 2.5f) {
    code = 4;
  } else if (a < 3.5f) {
    code = 5;
  } else if (a <= 5.0f) {
    code = 6;
  }
  return static_cast<uint8_t>(sign | code);
}

// The value of the low four bits of `code`; higher bits are ignored.
PEREGRINE_HD inline float e2m1_value(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 8u) << 28;
  const uint32_t exponent = (code >> 1) & 3u;
  const uint32_t mantissa = code & 1u;
  if (exponent == 0) return float_from_bits(sign | (mantissa != 0 ? 0x3F000000u : 0u));
  return float_from_bits(sign | ((exponent + 126u) << 23) | (mantissa << 22));
}

PEREGRINE_HD inline uint8_t e2m1_pack(uint8_t even_code, uint8_t odd_code) {
  return static_cast<uint8_t>((even_code & 15u) | ((odd_code & 15u) << 4));
}

// The code of element `index` of a packed row.
PEREGRINE_HD inline uint8_t e2m1_unpack(const uint8_t* packed, int64_t index) {
  const uint8_t byte = packed[index >> 1];
  return static_cast<uint8_t>((index & 1) != 0 ? byte >> 4 : byte & 15u);
}

}  // namespace peregrine
