// Rows of stored weights as floats (spec: quantization.md section 6).
#pragma once

#include <cstdint>

#include "backend/tensor.h"
#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"

namespace peregrine::reference {

inline constexpr int kScaleBlock = 32;  // inputs that share one weight scale

inline bool has_scales(const Weight& w) {
  return w.format == WeightFormat::kF8 || w.format == WeightFormat::kF4;
}

// Scale of inputs 32 * block .. 32 * block + 31 of row `out`; only for F8 and F4.
inline float weight_scale(const Weight& w, int64_t out, int64_t block) {
  const int64_t blocks = (w.in + kScaleBlock - 1) / kScaleBlock;
  const int64_t scale_row = w.format == WeightFormat::kF8 ? out / kScaleBlock : out;
  return e8m0_value(w.scale[scale_row * blocks + block]);
}

// values [in]: the stored numbers of row `out`, without their scales.
inline void stored_row(const Weight& w, int64_t out, float* values) {
  const int64_t first = out * w.in;
  for (int64_t i = 0; i < w.in; ++i) {
    const int64_t at = first + i;
    switch (w.format) {
      case WeightFormat::kF32:
        values[i] = static_cast<const float*>(w.data)[at];
        break;
      case WeightFormat::kBF16:
        values[i] = bf16_value(static_cast<const uint16_t*>(w.data)[at]);
        break;
      case WeightFormat::kF8:
        values[i] = e4m3_value(static_cast<const uint8_t*>(w.data)[at]);
        break;
      case WeightFormat::kF4:
        values[i] = e2m1_value(e2m1_unpack(static_cast<const uint8_t*>(w.data), at));
        break;
    }
  }
}

// values [in]: row `out` with its scales applied, which is exact.
inline void widen_row(const Weight& w, int64_t out, float* values) {
  stored_row(w, out, values);
  if (!has_scales(w)) return;
  for (int64_t i = 0; i < w.in; ++i) values[i] *= weight_scale(w, out, i / kScaleBlock);
}

}  // namespace peregrine::reference
