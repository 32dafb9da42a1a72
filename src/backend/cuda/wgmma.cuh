// Products of a warpgroup of four warps: 64 weight rows, in registers, by kN rows of the step in
// shared memory, 16 inputs deep. On Hopper the instruction is wgmma, which sums bit for bit as
// mma.sync does; for other targets, which lack it, mma.sync takes its place. Assumes the caller's
// order of fence, products, commit and wait.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "backend/cuda/mma.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PEREGRINE_WGMMA 1
#else
#define PEREGRINE_WGMMA 0
#endif

namespace peregrine::cuda {

// Before the first product after registers of a product changed.
__device__ inline void wgmma_fence() {
#if PEREGRINE_WGMMA
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ inline void wgmma_commit() {
#if PEREGRINE_WGMMA
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Until at most kPending groups of products are in flight.
template <int kPending>
__device__ inline void wgmma_wait() {
#if PEREGRINE_WGMMA
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}
// Makes this thread's writes to shared memory visible to products, once a barrier follows.
__device__ inline void fence_shared_for_wgmma() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Keeps registers that a product in flight reads or writes from other uses up to here.
template <typename T, int kCount>
__device__ inline void hold(T (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (std::is_floating_point_v<T>) {
      asm volatile("" : "+f"(registers[i])::"memory");
    } else {
      asm volatile("" : "+r"(registers[i])::"memory");
    }
  }
}

// wgmma<kN>(acc, a, inputs, add): acc = (add ? acc : 0) + a . inputs.
// `inputs`: shared address of the 16 inputs in row 0 of the step's rows, which are 64 bf16 (128
// bytes) long and lie one after another from an address that 1,024 divides, the 16-byte unit u of
// row r at place u ^ (r % 8).
// A thread's sums: acc[4 n + i] belongs to row 8 n + 2 t + i % 2 of the step and to weight row g
// (i = 0, 1) or g + 8 (i = 2, 3) of its warp's 16; a: as for mma().
#if PEREGRINE_WGMMA

// The descriptor of the layout above.
__device__ inline uint64_t wgmma_inputs(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kGroupStride = uint64_t{1024 / 16} << 32;
  return kSwizzle128 | kGroupStride | uint64_t{1} << 16 | ((address >> 4) & 0x3FFF);
}

template <int kN>
__device__ void wgmma(float (&acc)[kN / 2], const uint32_t (&a)[4], uint32_t inputs, bool add);

#define PEREGRINE_ACC4(i) "+f"(acc[i]), "+f"(acc[i + 1]), "+f"(acc[i + 2]), "+f"(acc[i + 3])
#define PEREGRINE_ACC16(i) \
  PEREGRINE_ACC4(i), PEREGRINE_ACC4(i + 4), PEREGRINE_ACC4(i + 8), PEREGRINE_ACC4(i + 12)
#define PEREGRINE_WGMMA_IN \
  "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(wgmma_inputs(inputs)), "r"(static_cast<int>(add))

template <>
__device__ inline void wgmma<32>(float (&acc)[16], const uint32_t (&a)[4], uint32_t inputs,
                                 bool add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
      "}, {%16,%17,%18,%19}, %20, p, 1, 1, 0;}"
      : PEREGRINE_ACC16(0)
      : PEREGRINE_WGMMA_IN
      : "memory");
}

template <>
__device__ inline void wgmma<64>(float (&acc)[32], const uint32_t (&a)[4], uint32_t inputs,
                                 bool add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,"
      "%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
      "}, {%32,%33,%34,%35}, %36, p, 1, 1, 0;}"
      : PEREGRINE_ACC16(0), PEREGRINE_ACC16(16)
      : PEREGRINE_WGMMA_IN
      : "memory");
}

template <>
__device__ inline void wgmma<96>(float (&acc)[48], const uint32_t (&a)[4], uint32_t inputs,
                                 bool add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %53, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,"
      "%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,"
      "%40,%41,%42,%43,%44,%45,%46,%47"
      "}, {%48,%49,%50,%51}, %52, p, 1, 1, 0;}"
      : PEREGRINE_ACC16(0), PEREGRINE_ACC16(16), PEREGRINE_ACC16(32)
      : PEREGRINE_WGMMA_IN
      : "memory");
}

template <>
__device__ inline void wgmma<128>(float (&acc)[64], const uint32_t (&a)[4], uint32_t inputs,
                                  bool add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,"
      "%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,"
      "%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,"
      "%59,%60,%61,%62,%63"
      "}, {%64,%65,%66,%67}, %68, p, 1, 1, 0;}"
      : PEREGRINE_ACC16(0), PEREGRINE_ACC16(16), PEREGRINE_ACC16(32), PEREGRINE_ACC16(48)
      : PEREGRINE_WGMMA_IN
      : "memory");
}

#undef PEREGRINE_ACC4
#undef PEREGRINE_ACC16
#undef PEREGRINE_WGMMA_IN

#else  // compiled, not run

template <int kN>
__device__ inline void wgmma(float (&acc)[kN / 2], const uint32_t (&a)[4], uint32_t inputs,
                             bool add) {
  const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const uint32_t base = inputs / 128 * 128, unit = inputs % 128 / 16;
  const auto pair = [&](uint32_t row, uint32_t at) {
    uint32_t word;
    asm volatile("ld.shared.b32 %0, [%1];"
                 : "=r"(word)
                 : "r"(base + row * 128 + (at ^ g) * 16 + t * 4));
    return word;
  };
#pragma unroll
  for (int n = 0; n < kN / 8; ++n) {
    float sums[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = add ? acc[n * 4 + i] : 0.0f;
    const auto row = static_cast<uint32_t>(n) * 8 + g;
    mma(sums, a, pair(row, unit), pair(row, unit + 1));
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[n * 4 + i] = sums[i];
  }
}

#endif

}  // namespace peregrine::cuda
