#include "backend/cuda/chunk_tile.cuh"
#include "backend/cuda/common.cuh"
#include "backend/cuda/linear_kernels.h"
#include "backend/cuda/pdl.cuh"

namespace peregrine::cuda {
namespace {

template <Product kProduct>
__global__ void __launch_bounds__(kChunkThreads, 1) chunk_kernel(LinearArgs args) {
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ int32_t x_rows[kChunkColumns];
  __shared__ uint16_t* y_rows[kChunkColumns];
  // Neighbouring blocks share weight rows.
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kChunkColumns;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kChunkOutputs;
  const int64_t left = args.rows - first_row;
  const bool narrow = args.y.elem == Elem::kBF16;
  for (int c = threadIdx.x; c < kChunkColumns; c += kChunkThreads) {
    x_rows[c] = c < left ? static_cast<int32_t>(first_row + c) : -1;
    y_rows[c] = c < left && narrow
                    ? static_cast<uint16_t*>(args.y.data) + (first_row + c) * args.w.out
                    : nullptr;
  }
  __syncthreads();
  grid_wait();
  grid_launch();
  // Groups are whole tiles of 128 outputs or the product is one group.
  const ChunkWeights<kProduct, false> weights{{args.w}, first};
  ChunkTile<kProduct, false> tile(
      weights, args.x.values, args.x.scales, args.x.in, first / args.group_out * args.w.in, x_rows,
      static_cast<int>(left < kChunkColumns ? left : kChunkColumns), shared);
  tile.run();

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  auto* out = reinterpret_cast<uint16_t*>(shared);
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    const int m = i / 32, n = i / 4 % 8, e = i % 4;
    const int output = warp / 2 * 32 + m * 16 + e / 2 * 8 + lane / 4;
    const int column = ChunkTile<kProduct, false>::first_column(warp, n) + lane % 4 * 2 + e % 2;
    if (narrow) {
      out[column * (kChunkOutputs + 8) + output] = bf16_bits(tile.total(m, n, e));
    } else if (column < left && first + output < args.w.out) {
      static_cast<float*>(args.y.data)[(first_row + column) * args.w.out + first + output] =
          tile.total(m, n, e);
    }
  }
  if (!narrow) return;
  __syncthreads();
  write_tile<kChunkOutputs>(out, y_rows, first, args.w.out);
}

template <Product kProduct>
void run(const Launch& launch, const LinearArgs& args) {
  constexpr int kShared = ChunkTile<kProduct, false>::kSharedBytes;
  static const cudaError_t allowed = cudaFuncSetAttribute(
      chunk_kernel<kProduct>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  check(allowed, "shared memory of chunk_kernel");
  const dim3 grid(static_cast<unsigned>((args.rows + kChunkColumns - 1) / kChunkColumns),
                  static_cast<unsigned>((args.w.out + kChunkOutputs - 1) / kChunkOutputs));
  start(chunk_kernel<kProduct>, grid, dim3(kChunkThreads), kShared, launch.stream, args);
}

}  // namespace

void linear_chunk(const Launch& launch, Product product, const LinearArgs& args) {
  switch (product) {
    case Product::kF8Codes:
      return run<Product::kF8Codes>(launch, args);
    case Product::kF4Codes:
      return run<Product::kF4Codes>(launch, args);
    case Product::kF8Plain:
      return run<Product::kF8Plain>(launch, args);
    case Product::kBF16:
      return run<Product::kBF16>(launch, args);
  }
}

}  // namespace peregrine::cuda
