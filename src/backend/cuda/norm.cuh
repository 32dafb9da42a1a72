// The steps of an RMS norm (spec: model.md section 4), shared with the kernels that fuse one.
#pragma once

#include "backend/cuda/act_vector.cuh"

namespace peregrine::cuda {

template <int kN>
__device__ inline void add_squares(const float (&v)[kN], float& squares) {
#pragma unroll
  for (int k = 0; k < kN; ++k) squares = __fmaf_rn(v[k], v[k], squares);
}

// rsqrt(mean + eps), as exact as f32 has it.
__device__ inline float rms_factor(float squares, int64_t n, float eps) {
  return 1.0f / sqrtf(squares / static_cast<float>(n) + eps);
}

// v = norm[0 .. kN) * (v * factor).
template <int kN>
__device__ inline void apply_norm(const float* norm, float factor, float (&v)[kN]) {
  float gain[kN];
  load_vector(norm, gain);
#pragma unroll
  for (int k = 0; k < kN; ++k) v[k] = gain[k] * (v[k] * factor);
}

}  // namespace peregrine::cuda
