// Several neighbouring act elements at once, so that memory is touched in 16-byte pieces.
#pragma once

#include <type_traits>

#include "backend/cuda/common.cuh"

namespace peregrine::cuda {

// Elements that a thread handles together where the width of a row allows it.
inline constexpr int kVector = 8;

// v = at[0 .. kN); for kN > 1 `at` is aligned to the piece, or to 16 bytes where it is larger.
template <int kN>
__device__ inline void load_vector(const float* at, float (&v)[kN]) {
  if constexpr (kN % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kN / 4; ++i) {
      const float4 piece = reinterpret_cast<const float4*>(at)[i];
      v[4 * i] = piece.x;
      v[4 * i + 1] = piece.y;
      v[4 * i + 2] = piece.z;
      v[4 * i + 3] = piece.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kN; ++i) v[i] = at[i];
  }
}

// The two bf16 numbers of a word, the lower address in the lower half.
__device__ inline void widen_pair(uint32_t word, float& low, float& high) {
  low = __uint_as_float(word << 16);
  high = __uint_as_float(word & 0xFFFF0000u);
}
__device__ inline uint32_t narrow_pair(float low, float high) {
  return static_cast<uint32_t>(bf16_bits(low)) | static_cast<uint32_t>(bf16_bits(high)) << 16;
}

template <int kN>
__device__ inline void load_vector(const Bf16* at, float (&v)[kN]) {
  if constexpr (kN % 8 == 0) {
#pragma unroll
    for (int i = 0; i < kN / 8; ++i) {
      const uint4 piece = reinterpret_cast<const uint4*>(at)[i];
      widen_pair(piece.x, v[8 * i], v[8 * i + 1]);
      widen_pair(piece.y, v[8 * i + 2], v[8 * i + 3]);
      widen_pair(piece.z, v[8 * i + 4], v[8 * i + 5]);
      widen_pair(piece.w, v[8 * i + 6], v[8 * i + 7]);
    }
  } else if constexpr (kN == 4) {
    const uint2 piece = *reinterpret_cast<const uint2*>(at);
    widen_pair(piece.x, v[0], v[1]);
    widen_pair(piece.y, v[2], v[3]);
  } else {
#pragma unroll
    for (int i = 0; i < kN; ++i) v[i] = widen(at[i]);
  }
}

template <int kN>
__device__ inline void store_vector(float* at, const float (&v)[kN]) {
  if constexpr (kN % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kN / 4; ++i)
      reinterpret_cast<float4*>(at)[i] =
          make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
  } else {
#pragma unroll
    for (int i = 0; i < kN; ++i) at[i] = v[i];
  }
}

template <int kN>
__device__ inline void store_vector(Bf16* at, const float (&v)[kN]) {
  if constexpr (kN == 8) {
    *reinterpret_cast<uint4*>(at) = make_uint4(narrow_pair(v[0], v[1]), narrow_pair(v[2], v[3]),
                                               narrow_pair(v[4], v[5]), narrow_pair(v[6], v[7]));
  } else if constexpr (kN == 4) {
    *reinterpret_cast<uint2*>(at) = make_uint2(narrow_pair(v[0], v[1]), narrow_pair(v[2], v[3]));
  } else {
#pragma unroll
    for (int i = 0; i < kN; ++i) store_act(at + i, v[i]);
  }
}

// Calls f with the number of elements to handle together in rows of `cols` elements, as an
// integral constant: kVector, or 1 for widths that only tests have.
template <typename F>
void with_vector(int64_t cols, F f) {
  if (cols % kVector == 0) {
    f(std::integral_constant<int, kVector>());
  } else {
    f(std::integral_constant<int, 1>());
  }
}

// Calls f with the threads that share one row of `cols` elements. A function of the width alone:
// it decides the order of the row's sums.
template <typename F>
void with_row_threads(int64_t cols, F f) {
  if (cols <= 2048) {
    f(std::integral_constant<int, 128>());
  } else {
    f(std::integral_constant<int, 640>());
  }
}

template <typename T>
using ActOf = std::remove_pointer_t<T>;

}  // namespace peregrine::cuda
