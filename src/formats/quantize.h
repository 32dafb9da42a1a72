// The three block quantisers of the model and their inverses (spec/quantization.md, sections 3-5).
//
//   act_quant  32 values  e4m3 codes, power-of-two scale   inputs of F8/F4 linears, window KV rows
//   fp4_e8m0   32 values  e2m1 codes, power-of-two scale   index queries and index keys
//   fp4_e4m3   16 values  e2m1 codes, e4m3 scale           compressed KV rows
//
// Inputs are floats, whether they hold bf16 numbers or not. fp4 codes are packed, the even element
// in the low nibble. Dequantised values are exact in float, and in bf16. The `_row` functions take
// rows whose length is a multiple of the block; the `_in_place` ones replace every value by what
// its code means, which is how the model was trained. Inputs are assumed finite.
#pragma once

#include <cstdint>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "formats/host_device.h"

namespace peregrine {

inline constexpr int kActBlock = 32;
inline constexpr int kFp4E8m0Block = 32;
inline constexpr int kFp4E4m3Block = 16;

namespace formats_detail {

inline constexpr float kActMinimum = 1e-4f;
inline constexpr float kFp4E8m0Minimum = 0x1.8p-124f;  // 6 * 2^-126
inline constexpr float kFp4E4m3Minimum = 0.01171875f;  // 6 * 2^-9

// max |x| over n values, at least `minimum`.
PEREGRINE_HD inline float block_amax(const float* x, int n, float minimum) {
  float amax = minimum;
  for (int i = 0; i < n; ++i) {
    const float a = x[i] < 0.0f ? -x[i] : x[i];
    if (a > amax) amax = a;
  }
  return amax;
}

PEREGRINE_HD inline float clamp(float x, float limit) {
  if (x > limit) return limit;
  return x < -limit ? -limit : x;
}

PEREGRINE_HD inline void fp4_codes(const float* x, int n, float scale, uint8_t* packed) {
  for (int i = 0; i < n; i += 2) {
    packed[i / 2] = e2m1_pack(e2m1_code(clamp(x[i] / scale, kE2m1Max)),
                              e2m1_code(clamp(x[i + 1] / scale, kE2m1Max)));
  }
}

PEREGRINE_HD inline void fp4_values(const uint8_t* packed, int n, float scale, float* y) {
  for (int i = 0; i < n; ++i) y[i] = e2m1_value(e2m1_unpack(packed, i)) * scale;
}

}  // namespace formats_detail

// x [32] -> codes [32] (e4m3) and one UE8M0 byte.
PEREGRINE_HD inline void act_quant_block(const float* x, uint8_t* codes, uint8_t* scale) {
  const float amax = formats_detail::block_amax(x, kActBlock, formats_detail::kActMinimum);
  *scale = e8m0_ceil_scale(amax, kInverse448);
  const float s = e8m0_value(*scale);
  for (int i = 0; i < kActBlock; ++i) {
    codes[i] = e4m3_bits(formats_detail::clamp(x[i] / s, kE4m3Max));
  }
}

PEREGRINE_HD inline void act_dequant_block(const uint8_t* codes, uint8_t scale, float* y) {
  const float s = e8m0_value(scale);
  for (int i = 0; i < kActBlock; ++i) y[i] = e4m3_value(codes[i]) * s;
}

// x [32] -> packed [16] (e2m1) and one UE8M0 byte.
PEREGRINE_HD inline void fp4_e8m0_block(const float* x, uint8_t* packed, uint8_t* scale) {
  const float amax = formats_detail::block_amax(x, kFp4E8m0Block, formats_detail::kFp4E8m0Minimum);
  *scale = e8m0_ceil_scale(amax, kInverse6);
  formats_detail::fp4_codes(x, kFp4E8m0Block, e8m0_value(*scale), packed);
}

PEREGRINE_HD inline void fp4_e8m0_dequant_block(const uint8_t* packed, uint8_t scale, float* y) {
  formats_detail::fp4_values(packed, kFp4E8m0Block, e8m0_value(scale), y);
}

// x [16] -> packed [8] (e2m1) and one e4m3 byte. The scale rounds to nearest, so it may be smaller
// than amax / 6; the largest elements then clamp.
PEREGRINE_HD inline void fp4_e4m3_block(const float* x, uint8_t* packed, uint8_t* scale) {
  const float amax = formats_detail::block_amax(x, kFp4E4m3Block, formats_detail::kFp4E4m3Minimum);
  *scale = e4m3_bits(amax / 6.0f);
  formats_detail::fp4_codes(x, kFp4E4m3Block, e4m3_value(*scale), packed);
}

PEREGRINE_HD inline void fp4_e4m3_dequant_block(const uint8_t* packed, uint8_t scale, float* y) {
  formats_detail::fp4_values(packed, kFp4E4m3Block, e4m3_value(scale), y);
}

// ---- rows: n values, a multiple of the block --------------------------------------------------

// codes [n], scales [n / 32].
PEREGRINE_HD inline void act_quant_row(const float* x, int64_t n, uint8_t* codes, uint8_t* scales) {
  for (int64_t i = 0; i < n; i += kActBlock) act_quant_block(x + i, codes + i, scales++);
}

PEREGRINE_HD inline void act_dequant_row(const uint8_t* codes, const uint8_t* scales, int64_t n,
                                         float* y) {
  for (int64_t i = 0; i < n; i += kActBlock) act_dequant_block(codes + i, *scales++, y + i);
}

// packed [n / 2], scales [n / 32].
PEREGRINE_HD inline void fp4_e8m0_row(const float* x, int64_t n, uint8_t* packed, uint8_t* scales) {
  for (int64_t i = 0; i < n; i += kFp4E8m0Block) fp4_e8m0_block(x + i, packed + i / 2, scales++);
}

PEREGRINE_HD inline void fp4_e8m0_dequant_row(const uint8_t* packed, const uint8_t* scales,
                                              int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += kFp4E8m0Block) {
    fp4_e8m0_dequant_block(packed + i / 2, *scales++, y + i);
  }
}

// packed [n / 2], scales [n / 16].
PEREGRINE_HD inline void fp4_e4m3_row(const float* x, int64_t n, uint8_t* packed, uint8_t* scales) {
  for (int64_t i = 0; i < n; i += kFp4E4m3Block) fp4_e4m3_block(x + i, packed + i / 2, scales++);
}

PEREGRINE_HD inline void fp4_e4m3_dequant_row(const uint8_t* packed, const uint8_t* scales,
                                              int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += kFp4E4m3Block) {
    fp4_e4m3_dequant_block(packed + i / 2, *scales++, y + i);
  }
}

// Fake quantisation: x [n] becomes the values its codes mean.
PEREGRINE_HD inline void act_quant_in_place(float* x, int64_t n) {
  uint8_t codes[kActBlock];
  uint8_t scale = 0;
  for (int64_t i = 0; i < n; i += kActBlock) {
    act_quant_block(x + i, codes, &scale);
    act_dequant_block(codes, scale, x + i);
  }
}

PEREGRINE_HD inline void fp4_e8m0_in_place(float* x, int64_t n) {
  uint8_t packed[kFp4E8m0Block / 2];
  uint8_t scale = 0;
  for (int64_t i = 0; i < n; i += kFp4E8m0Block) {
    fp4_e8m0_block(x + i, packed, &scale);
    fp4_e8m0_dequant_block(packed, scale, x + i);
  }
}

PEREGRINE_HD inline void fp4_e4m3_in_place(float* x, int64_t n) {
  uint8_t packed[kFp4E4m3Block / 2];
  uint8_t scale = 0;
  for (int64_t i = 0; i < n; i += kFp4E4m3Block) {
    fp4_e4m3_block(x + i, packed, &scale);
    fp4_e4m3_dequant_block(packed, scale, x + i);
  }
}

}  // namespace peregrine
