// Single stored weights as floats, for kernels without tensor cores.
#pragma once

#include "backend/cuda/common.cuh"
#include "backend/tensor.h"
#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"

namespace peregrine::cuda {

__device__ inline float weight_value(const Weight& w, int64_t out, int64_t in) {
  const int64_t at = out * w.in + in;
  const int64_t blocks = (w.in + 31) / 32;
  switch (w.format) {
    case WeightFormat::kF32:
      return static_cast<const float*>(w.data)[at];
    case WeightFormat::kBF16:
      return bf16_value(static_cast<const uint16_t*>(w.data)[at]);
    case WeightFormat::kF8:
      return e4m3_value(static_cast<const uint8_t*>(w.data)[at]) *
             e8m0_value(w.scale[out / 32 * blocks + in / 32]);
    default:
      return e2m1_value(e2m1_unpack(static_cast<const uint8_t*>(w.data), at)) *
             e8m0_value(w.scale[out * blocks + in / 32]);
  }
}

// x . row `out` of w over its inputs begin .. end - 1, by one warp; x[0] meets input `begin`. Lane
// l takes inputs begin + l, begin + l + 32, ... ascending; the lanes add up as in warp_sum.
template <typename T>
__device__ inline float warp_dot(const T* x, const Weight& w, int64_t out, int64_t begin,
                                 int64_t end) {
  float sum = 0;
  for (int64_t i = begin + threadIdx.x % 32; i < end; i += 32)
    sum = fmaf(widen(x[i - begin]), weight_value(w, out, i), sum);
  return warp_sum(sum);
}

}  // namespace peregrine::cuda
