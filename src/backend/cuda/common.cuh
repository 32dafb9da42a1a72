// Device helpers shared by the kernels: act elements as floats, and reductions with a fixed order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/launch.h"
#include "formats/bf16.h"

namespace peregrine::cuda {

inline constexpr int kWarp = 32;

// Act elements: bf16 stored as its bits, or f32.
using Bf16 = uint16_t;

__device__ inline float widen(Bf16 bits) { return bf16_value(bits); }
__device__ inline float widen(float value) { return value; }
// Rounds as the numerics of `T` say and stores.
__device__ inline void store_act(Bf16* at, float value) { *at = bf16_bits(value); }
__device__ inline void store_act(float* at, float value) { *at = value; }
// The value a store would leave.
template <typename T>
__device__ inline float round_act(float value) {
  if constexpr (sizeof(T) == 2) return round_bf16(value);
  return value;
}

// Calls f with a null pointer of the act element: f(static_cast<Bf16*>(nullptr)) or f(float*).
template <typename F>
void with_act(Numerics numerics, F f) {
  if (numerics == Numerics::kBF16) {
    f(static_cast<Bf16*>(nullptr));
  } else {
    f(static_cast<float*>(nullptr));
  }
}

// Sum over the warp as a butterfly: the same pairs in every call, the same value in every lane.
__device__ inline float warp_sum(float value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
  return value;
}
__device__ inline float warp_max(float value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, distance));
  return value;
}

// Sum over a block of kThreads threads (a multiple of 32, at most 1024), in every thread: warps
// first, then the warps' sums in ascending order. Safe to call repeatedly.
template <int kThreads>
__device__ inline float block_sum(float value) {
  constexpr int kWarps = kThreads / kWarp;
  __shared__ float sums[kWarps];
  value = warp_sum(value);
  __syncthreads();  // the last call's sums have been read
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = value;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += sums[w];
  return total;
}

}  // namespace peregrine::cuda
