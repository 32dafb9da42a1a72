#include "backend/cuda/prepare.h"

#include <cuda_fp8.h>

#include "backend/cuda/common.cuh"
#include "backend/cuda/mma.cuh"
#include "backend/cuda/pdl.cuh"
#include "formats/quantize.h"

namespace peregrine::cuda {
namespace {

constexpr int kThreads = 256;

// Two values, already divided by their scale, to e4m3 and back as f16.
__device__ uint32_t quantise_pair(float a, float b) {
  const __nv_fp8x2_storage_t codes =
      __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
  const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3);
  return static_cast<uint32_t>(halves.x) | static_cast<uint32_t>(halves.y) << 16;
}

// Eight inputs of one thread as floats.
__device__ void load_eight(const uint4& in, float (&v)[8]) {
  const uint32_t words[4] = {in.x, in.y, in.z, in.w};
#pragma unroll
  for (int j = 0; j < 8; ++j)
    v[j] = bf16_value(static_cast<uint16_t>(words[j / 2] >> (j % 2 * 16)));
}

// act_quant of 32 inputs, eight in each of the four threads of a quad: codes as f16 in the order of
// kProduct. Returns the scale times 2^code_bias.
template <Product kProduct>
__device__ float quantise_eight(const float (&v)[8], uint4& out) {
  float amax = formats_detail::kActMinimum;
#pragma unroll
  for (int j = 0; j < 8; ++j) amax = fmaxf(amax, fabsf(v[j]));
  const unsigned quad = 0xFu << (threadIdx.x % kWarp / 4 * 4);
  amax = fmaxf(amax, __shfl_xor_sync(quad, amax, 1));
  amax = fmaxf(amax, __shfl_xor_sync(quad, amax, 2));
  const uint32_t scale = e8m0_ceil_scale(amax, kInverse448);
  const float inverse = __uint_as_float((254u - scale) << 23);
  const auto pair = [&](int j) {
    return quantise_pair(v[input_order(kProduct, 2 * j)] * inverse,
                         v[input_order(kProduct, 2 * j + 1)] * inverse);
  };
  out = make_uint4(pair(0), pair(1), pair(2), pair(3));
  return __uint_as_float((scale + static_cast<uint32_t>(code_bias(kProduct))) << 23);
}

// A thread takes eight inputs; whole quads leave at the end, as rows are multiples of 32.
template <Product kProduct>
__global__ void prepare_kernel(const uint4* x, int64_t eights, int64_t row_eights, Prepared out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  grid_wait();
  grid_launch();
  if (i >= eights) return;
  const uint4 in = x[i];
  const int64_t row = i / row_eights, at = i % row_eights;
  auto* values = reinterpret_cast<uint4*>(
      const_cast<uint16_t*>(out.row(row) + at / 4 * out.block_stride() + at % 4 * 8));
  if constexpr (kProduct == Product::kBF16) {
    *values = in;
  } else if constexpr (kProduct == Product::kF8Plain) {
    // Neighbouring inputs 1 and 2 of every four change places.
    *values = make_uint4(__byte_perm(in.x, in.y, 0x5410), __byte_perm(in.x, in.y, 0x7632),
                         __byte_perm(in.z, in.w, 0x5410), __byte_perm(in.z, in.w, 0x7632));
  } else {
    float v[8];
    load_eight(in, v);
    const float scale = quantise_eight<kProduct>(v, *values);
    if (i % 4 == 0) const_cast<float*>(out.scale_row(row))[at / 4 * out.scale_stride()] = scale;
  }
}

template <Product kProduct>
__global__ void prepare_pairs_kernel(const uint4* x, int64_t eights, int64_t row_eights, int slots,
                                     uint4* values, float* scales) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  grid_wait();
  grid_launch();
  if (i >= eights) return;
  float v[8];
  load_eight(x[i], v);
  const bool shared = slots > 0 && i / row_eights % slots == slots - 1;
  const float scale = shared ? quantise_eight<Product::kF8Codes>(v, values[i])
                             : quantise_eight<kProduct>(v, values[i]);
  if (i % 4 == 0) scales[i / 4] = scale;
}

dim3 grid_of(int64_t eights) {
  return dim3(static_cast<unsigned>((eights + kThreads - 1) / kThreads));
}

template <Product kProduct>
void run(const Launch& launch, const uint16_t* x, int64_t rows, const Prepared& out) {
  const int64_t eights = rows * out.in / 8;
  start(prepare_kernel<kProduct>, grid_of(eights), dim3(kThreads), 0, launch.stream,
        reinterpret_cast<const uint4*>(x), eights, out.in / 8, out);
}

// Whole groups of eight rows, for either layout.
size_t value_bytes(int64_t rows, int64_t in) {
  return (static_cast<size_t>((rows + 7) / 8 * 8 * in) * 2 + 255) / 256 * 256;
}

}  // namespace

size_t prepared_bytes(int64_t rows, int64_t in) {
  return value_bytes(rows, in) + static_cast<size_t>((rows + 7) / 8 * 8 * (in / 32)) * 4;
}

Prepared prepare(const Launch& launch, Product product, const uint16_t* x, int64_t rows, int64_t in,
                 bool interleaved, std::byte* memory) {
  // What needs no change is used in place.
  if (product == Product::kBF16 && !interleaved) return {x, nullptr, in, false};
  const Prepared out{reinterpret_cast<uint16_t*>(memory),
                     reinterpret_cast<float*>(memory + value_bytes(rows, in)), in, interleaved};
  switch (product) {
    case Product::kF8Codes:
      run<Product::kF8Codes>(launch, x, rows, out);
      break;
    case Product::kF4Codes:
      run<Product::kF4Codes>(launch, x, rows, out);
      break;
    case Product::kF8Plain:
      run<Product::kF8Plain>(launch, x, rows, out);
      break;
    case Product::kBF16:
      run<Product::kBF16>(launch, x, rows, out);
  }
  return out;
}

Prepared prepare_pairs(const Launch& launch, Product product, int slots, const uint16_t* x,
                       int64_t rows, int64_t in, std::byte* memory) {
  auto* values = reinterpret_cast<uint16_t*>(memory);
  auto* scales = reinterpret_cast<float*>(memory + value_bytes(rows, in));
  const int64_t eights = rows * in / 8;
  start(product == Product::kF4Codes ? prepare_pairs_kernel<Product::kF4Codes>
                                     : prepare_pairs_kernel<Product::kF8Codes>,
        grid_of(eights), dim3(kThreads), 0, launch.stream, reinterpret_cast<const uint4*>(x),
        eights, in / 8, slots, reinterpret_cast<uint4*>(values), scales);
  return {values, scales, in, false};
}

}  // namespace peregrine::cuda
