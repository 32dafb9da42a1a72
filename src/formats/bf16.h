// BF16: the upper 16 bits of a float (spec/quantization.md, section 1).
#pragma once

#include <cstdint>

#include "formats/host_device.h"

namespace peregrine {

// To nearest, ties to even; overflow gives infinity, a NaN stays a (quiet) NaN.
PEREGRINE_HD inline uint16_t bf16_bits(float x) {
  const uint32_t bits = float_bits(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  const uint32_t tie_to_even = (bits >> 16) & 1u;
  return static_cast<uint16_t>((bits + 0x7FFFu + tie_to_even) >> 16);
}

PEREGRINE_HD inline float bf16_value(uint16_t bits) {
  return float_from_bits(static_cast<uint32_t>(bits) << 16);
}

// The bf16 number nearest to x, as a float.
PEREGRINE_HD inline float round_bf16(float x) { return bf16_value(bf16_bits(x)); }

}  // namespace peregrine
