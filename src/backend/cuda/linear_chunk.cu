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
  const int columns = static_cast<int>(left < kChunkColumns ? left : kChunkColumns);
  // Groups are whole tiles of 128 outputs or the product is one group.
  const ChunkWeights<kProduct, false> weights{{args.w}, first};
  using Tile = ChunkTile<kProduct, false>;
  Tile tile(weights, args.x, first / args.group_out * args.w.in, x_rows, shared);
  auto* out = reinterpret_cast<uint16_t*>(shared);
  with_columns(columns, [&](auto covered) {
    constexpr int kN = covered;
    float total[kN / 2];
    tile.template run<kN>(total);
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) {
      const int output = Tile::first_row() + i % 4 / 2 * 8, column = Tile::column(i / 4, i);
      if (narrow) {
        out[column * (kChunkOutputs + 8) + output] = bf16_bits(total[i]);
      } else if (column < columns && first + output < args.w.out) {
        static_cast<float*>(args.y.data)[(first_row + column) * args.w.out + first + output] =
            total[i];
      }
    }
  });
  if (!narrow) return;
  __syncthreads();
  write_tile<kChunkOutputs>(out, columns, y_rows, first, args.w.out);
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
    case Product::kF8:
      return run<Product::kF8>(launch, args);
    case Product::kF4:
      return run<Product::kF4>(launch, args);
    case Product::kBF16:
      return run<Product::kBF16>(launch, args);
  }
}

}  // namespace peregrine::cuda
