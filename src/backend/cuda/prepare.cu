#include "backend/cuda/prepare.h"

#include <cuda_fp8.h>

#include "backend/cuda/common.cuh"
#include "backend/cuda/mma.cuh"
#include "backend/cuda/pdl.cuh"
#include "formats/quantize.h"

namespace peregrine::cuda {
namespace {

constexpr int kThreads = 256;

// Eight inputs of one thread as floats.
__device__ void load_eight(const uint4& in, float (&v)[8]) {
  const uint32_t words[4] = {in.x, in.y, in.z, in.w};
#pragma unroll
  for (int j = 0; j < 8; ++j)
    v[j] = bf16_value(static_cast<uint16_t>(words[j / 2] >> (j % 2 * 16)));
}

// act_quant of 32 inputs, eight in each of the four threads of a quad: v = code * scale.
__device__ void quantise_eight(float (&v)[8]) {
  float amax = formats_detail::kActMinimum;
#pragma unroll
  for (int j = 0; j < 8; ++j) amax = fmaxf(amax, fabsf(v[j]));
  const unsigned quad = 0xFu << (threadIdx.x % kWarp / 4 * 4);
  amax = fmaxf(amax, __shfl_xor_sync(quad, amax, 1));
  amax = fmaxf(amax, __shfl_xor_sync(quad, amax, 2));
  const uint32_t scale = e8m0_ceil_scale(amax, kInverse448);
  const float inverse = __uint_as_float((254u - scale) << 23);
  const float factor = __uint_as_float(scale << 23);
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    const __nv_fp8x2_storage_t codes = __nv_cvt_float2_to_fp8x2(
        make_float2(v[j] * inverse, v[j + 1] * inverse), __NV_SATFINITE, __NV_E4M3);
    const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3);
    v[j] = __half2float(__half(__half_raw{halves.x})) * factor;
    v[j + 1] = __half2float(__half(__half_raw{halves.y})) * factor;
  }
}

// Stores the eight values of thread `t` of a quad, exact in bf16, at the block of 32 that starts at
// `block`.
template <Product kProduct>
__device__ void store_eight(const float (&v)[8], int t, bool instructions, uint16_t* block) {
  uint32_t pairs[4];
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const float low = v[input_order(kProduct, 2 * q)];
    const float high = v[input_order(kProduct, 2 * q + 1)];
    pairs[q] = __float_as_uint(low) >> 16 | (__float_as_uint(high) & 0xFFFF0000u);
  }
  if (instructions) {
#pragma unroll
    for (int q = 0; q < 4; ++q) reinterpret_cast<uint32_t*>(block)[q * 4 + t] = pairs[q];
  } else {
    reinterpret_cast<uint4*>(block)[t] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }
}

// A thread takes eight inputs; whole quads leave at the end, as rows are multiples of 32.
template <Product kProduct, bool kQuantise>
__global__ void prepare_kernel(const uint4* x, int64_t eights, int64_t row_eights,
                               bool instructions, Prepared out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  grid_wait();
  grid_launch();
  if (i >= eights) return;
  const int64_t row = i / row_eights, at = i % row_eights;
  float v[8];
  load_eight(x[i], v);
  if constexpr (kQuantise) quantise_eight(v);
  store_eight<kProduct>(v, static_cast<int>(at % 4), instructions,
                        const_cast<uint16_t*>(out.row(row)) + at / 4 * out.block_stride());
}

template <Product kProduct>
__global__ void prepare_twice_kernel(const uint4* x, int64_t eights, bool instructions, uint16_t* a,
                                     uint16_t* b) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  grid_wait();
  grid_launch();
  if (i >= eights) return;
  float v[8];
  load_eight(x[i], v);
  quantise_eight(v);
  store_eight<kProduct>(v, static_cast<int>(i % 4), instructions, a + i / 4 * 32);
  store_eight<Product::kF8>(v, static_cast<int>(i % 4), instructions, b + i / 4 * 32);
}

template <Product kProduct>
__global__ void prepare_pairs_kernel(const uint4* x, int64_t eights, int64_t row_eights, int slots,
                                     bool instructions, uint16_t* values) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  grid_wait();
  grid_launch();
  if (i >= eights) return;
  float v[8];
  load_eight(x[i], v);
  quantise_eight(v);
  uint16_t* block = values + i / 4 * 32;
  const int t = static_cast<int>(i % 4);
  if (slots > 0 && i / row_eights % slots == slots - 1) {
    store_eight<Product::kF8>(v, t, instructions, block);
  } else {
    store_eight<kProduct>(v, t, instructions, block);
  }
}

dim3 grid_of(int64_t eights) {
  return dim3(static_cast<unsigned>((eights + kThreads - 1) / kThreads));
}

}  // namespace

// Whole groups of eight rows, for any layout.
size_t prepared_bytes(int64_t rows, int64_t in) {
  return (static_cast<size_t>((rows + 7) / 8 * 8 * in) * 2 + 255) / 256 * 256;
}

Prepared prepare(const Launch& launch, Product product, bool quantise, const uint16_t* x,
                 int64_t rows, int64_t in, InputLayout layout, std::byte* memory) {
  const Prepared out{reinterpret_cast<uint16_t*>(memory), in, layout == InputLayout::kInterleaved};
  const auto run = [&](auto kernel) {
    const int64_t eights = rows * in / 8;
    start(kernel, grid_of(eights), dim3(kThreads), 0, launch.stream,
          reinterpret_cast<const uint4*>(x), eights, in / 8, layout == InputLayout::kInstructions,
          out);
  };
  switch (product) {
    case Product::kF8:
      quantise ? run(prepare_kernel<Product::kF8, true>) : run(prepare_kernel<Product::kF8, false>);
      break;
    case Product::kF4:
      run(prepare_kernel<Product::kF4, true>);
      break;
    case Product::kBF16:
      run(prepare_kernel<Product::kBF16, false>);
  }
  return out;
}

PreparedTwice prepare_twice(const Launch& launch, Product a, const uint16_t* x, int64_t rows,
                            int64_t in, InputLayout layout, std::byte* memory_a,
                            std::byte* memory_b) {
  const PreparedTwice out{{reinterpret_cast<uint16_t*>(memory_a), in, false},
                          {reinterpret_cast<uint16_t*>(memory_b), in, false}};
  const int64_t eights = rows * in / 8;
  start(a == Product::kF4 ? prepare_twice_kernel<Product::kF4> : prepare_twice_kernel<Product::kF8>,
        grid_of(eights), dim3(kThreads), 0, launch.stream, reinterpret_cast<const uint4*>(x),
        eights, layout == InputLayout::kInstructions, const_cast<uint16_t*>(out.a.values),
        const_cast<uint16_t*>(out.b.values));
  return out;
}

Prepared prepare_pairs(const Launch& launch, Product product, int slots, const uint16_t* x,
                       int64_t rows, int64_t in, InputLayout layout, std::byte* memory) {
  auto* values = reinterpret_cast<uint16_t*>(memory);
  const int64_t eights = rows * in / 8;
  start(product == Product::kF4 ? prepare_pairs_kernel<Product::kF4>
                                : prepare_pairs_kernel<Product::kF8>,
        grid_of(eights), dim3(kThreads), 0, launch.stream, reinterpret_cast<const uint4*>(x),
        eights, in / 8, slots, layout == InputLayout::kInstructions, values);
  return {values, in, false};
}

}  // namespace peregrine::cuda
