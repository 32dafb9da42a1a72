// Codes of packed KV rows as pairs of bf16 numbers in registers, and the tensor core instructions
// that take them. All widening is exact: a code times its scale is a bf16 number.
//
// A pair is a word with the element of the lower index in its lower half.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "formats/bf16.h"

namespace peregrine::cuda {

// ---- widening ---------------------------------------------------------------------------------

// Both products, rounded to bf16; subnormal operands keep their value.
__device__ inline uint32_t multiply_pair(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// Both rounded to bf16, negative ones to zero; a NaN stays one.
__device__ inline uint32_t narrow_positive_pair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// The same bf16 number twice. `value` must be one.
__device__ inline uint32_t pair_of(float value) {
  return __byte_perm(__float_as_uint(value), 0, 0x3232);
}

// Codes 2 i and 2 i + 1 of four e4m3 codes, without their scale. Exponent and mantissa move to
// where bf16 has them, which leaves 2^-120 times the value.
template <int kPair>
__device__ inline uint32_t e4m3_pair(uint32_t codes) {
  constexpr unsigned kSpread = kPair == 0 ? 0x1404u : 0x3424u;  // a code in the top of each half
  constexpr uint32_t kRebias = 0x7B807B80u;                     // 2^120, twice
  const uint32_t spread = __byte_perm(codes, 0, kSpread);
  return multiply_pair((spread & 0x80008000u) | ((spread >> 4) & 0x07F007F0u), kRebias);
}

// Four e2m1 codes (the lower 16 bits) as two pairs, without their scale, from a table of the upper
// and one of the lower bytes of 0, 0.5, 1, 1.5, 2, 3, 4, 6.
__device__ inline void e2m1_pairs(uint32_t codes, uint32_t& pair01, uint32_t& pair23) {
  const uint32_t magnitudes = codes & 0x7777u;
  const uint32_t upper = __byte_perm(0x3F3F3F00u, 0x40404040u, magnitudes);
  const uint32_t lower = __byte_perm(0xC0800000u, 0xC0804000u, magnitudes);
  constexpr uint32_t kSigns = 0x80008000u;
  constexpr uint32_t kSpread = 0x01001000u;  // bits 3 and 7 of a byte to bits 15 and 31
  pair01 = __byte_perm(lower, upper, 0x5140) | (((codes & 0xFFu) * kSpread) & kSigns);
  pair23 = __byte_perm(lower, upper, 0x7362) | (((codes >> 8 & 0xFFu) * kSpread) & kSigns);
}

// ---- fragments of mma.m16n8k16 ----------------------------------------------------------------

__device__ inline uint32_t shared_offset(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

// Four 8x8 matrices; lane l gives the address of row l % 8 of matrix l / 8, 16 bytes.
__device__ inline void load_matrices(const void* row, uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(shared_offset(row))
               : "memory");
}
__device__ inline void load_matrices_transposed(const void* row, uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(shared_offset(row))
               : "memory");
}

// sums += a . b: 16 rows of a, 8 columns of b, 16 products each, f32 sums. Lane l holds sums of
// rows l / 4 (first two) and l / 4 + 8, columns 2 (l % 4) and the next.
__device__ inline void multiply_tiles(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0,
                                      uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace peregrine::cuda
