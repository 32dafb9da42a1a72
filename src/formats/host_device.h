// What the formats need to compile for the host and for the GPU alike: the function attribute and
// the reinterpretation of float bits.
#pragma once

#include <cstdint>

#if !defined(__CUDA_ARCH__)
#include <bit>
#endif

#if defined(__CUDACC__)
#define PEREGRINE_HD __host__ __device__
#else
#define PEREGRINE_HD
#endif

namespace peregrine {

PEREGRINE_HD inline uint32_t float_bits(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  return std::bit_cast<uint32_t>(x);
#endif
}

PEREGRINE_HD inline float float_from_bits(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

}  // namespace peregrine
