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
__device__ inline void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
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

// 2^(scale + kScaleShift) as two bf16 numbers; the scale is byte `i` of a word. Byte 0 counts as
// 2^-127, which no sum can tell from 0.
__device__ inline uint32_t block_factor(uint32_t bytes, int i) {
  const auto index = static_cast<uint32_t>(i);
  const uint32_t both = __byte_perm(bytes, 0, 0x4040u | index | index << 8);
  return both * 128u + ((static_cast<uint32_t>(kScaleShift) << 7) * 0x10001u);
}

__device__ inline uint32_t scaled(uint32_t pair, uint32_t factor) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(pair), "r"(factor));
  return product;
}

// Four e4m3 codes to two pairs of bf16 numbers: codes 0 and 2, then 1 and 3.
__device__ inline void widen_e4m3(uint32_t codes, uint32_t factor, uint32_t& even, uint32_t& odd) {
  constexpr uint32_t kSigns = 0x80008000u, kAll = 0x87F087F0u;
  odd = scaled(select_bits(kSigns, codes, codes >> 4) & kAll, factor);
  even = scaled(select_bits(kSigns, codes << 8, codes << 4) & kAll, factor);
}

// Eight e2m1 codes to four pairs of bf16 numbers: code i and code i + 4.
__device__ inline void widen_e2m1(uint32_t codes, uint32_t factor, uint32_t (&pairs)[4]) {
  constexpr uint32_t kSigns = 0x80008000u, kAll = 0x81C081C0u;
  pairs[0] = scaled(select_bits(kSigns, codes << 12, codes << 6) & kAll, factor);
  pairs[1] = scaled(select_bits(kSigns, codes << 8, codes << 2) & kAll, factor);
  pairs[2] = scaled(select_bits(kSigns, codes << 4, codes >> 2) & kAll, factor);
  pairs[3] = scaled(select_bits(kSigns, codes, codes >> 6) & kAll, factor);
}

// The eight weights of one thread and weight row in a block of 32, from shared memory, as the four
// registers of input pairs 0..3.
template <Product kProduct>
__device__ inline void widen_eight(const uint32_t* words, uint32_t factor, uint32_t (&pairs)[4]) {
  if constexpr (kProduct == Product::kF8) {
    widen_e4m3(words[0], factor, pairs[0], pairs[1]);
    widen_e4m3(words[1], factor, pairs[2], pairs[3]);
  } else if constexpr (kProduct == Product::kF4) {
    widen_e2m1(words[0], factor, pairs);
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

// One block of 32 inputs for one tile of 16 outputs and 8 rows: acc += W . X^T. a0, a1: the pairs
// of weight rows g and g + 8; b: the thread's inputs.
__device__ inline void block_product(float (&acc)[4], const uint32_t (&a0)[4],
                                     const uint32_t (&a1)[4], const uint4& b) {
  const uint32_t first[4] = {a0[0], a1[0], a0[1], a1[1]};
  const uint32_t second[4] = {a0[2], a1[2], a0[3], a1[3]};
  mma(acc, first, b.x, b.y);
  mma(acc, second, b.z, b.w);
}

}  // namespace peregrine::cuda
