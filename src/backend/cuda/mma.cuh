// What the matrix products share: stored weights as tensor core fragments and the instructions.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "backend/cuda/mma_product.h"

namespace peregrine::cuda {

// ---- instructions -----------------------------------------------------------------------------

// d += a . b, f32 accumulators.
template <bool kBf16Inputs>
__device__ inline void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kBf16Inputs) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Copies 16 (8, 4) bytes to shared memory in the background; zeros when `valid` is false.
__device__ inline void async_copy16(uint32_t shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ inline void async_copy8(uint32_t shared, const void* global, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(global),
               "r"(valid ? 8 : 0)
               : "memory");
}
__device__ inline void async_copy4(uint32_t shared, const void* global, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global),
               "r"(valid ? 4 : 0)
               : "memory");
}
__device__ inline void async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// ---- widening ---------------------------------------------------------------------------------

// (a & mask) | (b & ~mask), as the one instruction it is: the compiler would merge it with the
// masks that follow and need more.
__device__ inline uint32_t select_bits(uint32_t mask, uint32_t a, uint32_t b) {
  uint32_t bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(bits) : "r"(mask), "r"(a), "r"(b));
  return bits;
}

// Four e4m3 codes to two pairs of f16 numbers: codes 0 and 2, then 1 and 3; values * 2^-8.
__device__ inline void widen_e4m3_f16(uint32_t codes, uint32_t& even, uint32_t& odd) {
  odd = select_bits(0x80008000u, codes, codes >> 1) & 0xBF80BF80u;
  even = select_bits(0x80008000u, codes << 8, codes << 7) & 0xBF80BF80u;
}

// Four e4m3 codes to two pairs of bf16 numbers, exact.
__device__ inline void widen_e4m3_bf16(uint32_t codes, uint32_t& even, uint32_t& odd) {
  const uint32_t raw_odd = select_bits(0x80008000u, codes, codes >> 4) & 0x87F087F0u;
  const uint32_t raw_even = select_bits(0x80008000u, codes << 8, codes << 4) & 0x87F087F0u;
  // The exponent field means 2^-120 times the value: one exact product puts it right.
  constexpr uint32_t kRebias = 0x7B807B80u;  // 2^120, twice
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(even) : "r"(raw_even), "r"(kRebias));
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(odd) : "r"(raw_odd), "r"(kRebias));
}

// Eight e2m1 codes to four pairs of f16 numbers in the order of input_order; values * 2^-14.
__device__ inline void widen_e2m1_f16(uint32_t codes, uint32_t (&pairs)[4]) {
  const uint32_t low = select_bits(0x80808080u, codes << 4, codes << 1);
  const uint32_t high = select_bits(0x80808080u, codes, codes >> 3);
  pairs[0] = (low << 8) & 0x8E008E00u;
  pairs[1] = low & 0x8E008E00u;
  pairs[2] = (high << 8) & 0x8E008E00u;
  pairs[3] = high & 0x8E008E00u;
}

// The eight weights of one thread and weight row in a block of 32, from shared memory, as the four
// registers of input pairs 0..3.
template <Product kProduct>
__device__ inline void widen_eight(const uint32_t* words, uint32_t (&pairs)[4]) {
  if constexpr (kProduct == Product::kF8Codes) {
    widen_e4m3_f16(words[0], pairs[0], pairs[1]);
    widen_e4m3_f16(words[1], pairs[2], pairs[3]);
  } else if constexpr (kProduct == Product::kF8Plain) {
    widen_e4m3_bf16(words[0], pairs[0], pairs[1]);
    widen_e4m3_bf16(words[1], pairs[2], pairs[3]);
  } else if constexpr (kProduct == Product::kF4Codes) {
    widen_e2m1_f16(words[0], pairs);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = words[i];
  }
}

// Words of shared memory that one thread holds of a weight row in a block.
PEREGRINE_HD constexpr int thread_words(Product p) { return block_bytes(p) / 16; }

template <int kWords>
__device__ inline void load_shared(const std::byte* at, uint32_t (&words)[kWords]) {
  if constexpr (kWords == 1) {
    words[0] = *reinterpret_cast<const uint32_t*>(at);
  } else if constexpr (kWords == 2) {
    const uint2 v = *reinterpret_cast<const uint2*>(at);
    words[0] = v.x;
    words[1] = v.y;
  } else {
    const uint4 v = *reinterpret_cast<const uint4*>(at);
    words[0] = v.x;
    words[1] = v.y;
    words[2] = v.z;
    words[3] = v.w;
  }
}

// Exchanges bits 0 and 2 of a number below 8: the swizzle of 16-byte units in rows of 128 bytes
// for which all the fragment loads above are free of bank conflicts.
__device__ inline int swizzle(int row) { return ((row & 1) << 2) | (row & 2) | ((row >> 2) & 1); }

// Byte `i` of a word of scales as a float. Byte 0 counts as 0 instead of 2^-127, which no sum can
// tell apart.
__device__ inline float scale_value(uint32_t bytes, int i) {
  const int shift = 23 - 8 * i;
  return __uint_as_float((shift >= 0 ? bytes << shift : bytes >> -shift) & 0x7F800000u);
}

// One block of 32 inputs for one tile of 16 outputs and 8 rows: acc += W . X^T. a0, a1: the pairs
// of weight rows g and g + 8; b: the thread's inputs.
template <Product kProduct>
__device__ inline void block_product(float (&acc)[4], const uint32_t (&a0)[4],
                                     const uint32_t (&a1)[4], const uint4& b) {
  constexpr bool kBf16Inputs = kProduct == Product::kBF16 || kProduct == Product::kF8Plain;
  const uint32_t first[4] = {a0[0], a1[0], a0[1], a1[1]};
  const uint32_t second[4] = {a0[2], a1[2], a0[3], a1[3]};
  mma<kBf16Inputs>(acc, first, b.x, b.y);
  mma<kBf16Inputs>(acc, second, b.z, b.w);
}

}  // namespace peregrine::cuda
