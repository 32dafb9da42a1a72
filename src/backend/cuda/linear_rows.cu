#include <algorithm>

#include "backend/cuda/common.cuh"
#include "backend/cuda/linear_kernels.h"
#include "backend/cuda/pdl.cuh"
#include "backend/cuda/weight_stream.cuh"

namespace peregrine::cuda {
namespace {

constexpr int kStride = 256;  // of interleaved inputs

// Tiles of one matrix in ascending order.
template <Product kProduct, int kTiles>
struct MatrixTiles {
  Weight w;
  __device__ void operator()(int job, WeightTile (&tiles)[kTiles]) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      tiles[i] = weight_tile<kProduct>(w, (static_cast<int64_t>(job) * kTiles + i) * kTileOutputs);
  }
};

// Blocks stay; their groups of warps take jobs of 16 * kTiles outputs in turns.
template <Product kProduct, int kTiles, int kColumns>
__global__ void __launch_bounds__(kStreamThreads, 2) rows_kernel(LinearArgs args, int jobs) {
  extern __shared__ __align__(128) std::byte ring[];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const StreamGroup group(kProduct, args.w.in, static_cast<int>(blockIdx.x));
  using Tiles = MatrixTiles<kProduct, kTiles>;
  WeightStream<kProduct, kTiles, kColumns, kStride, Tiles> stream(Tiles{args.w}, args.w.in, group,
                                                                  jobs, ring);
  grid_wait();
  grid_launch();

  constexpr int kOutputs = kTileOutputs * kColumns * 8;
  __shared__ float partial[2][kTiles][kStreamWarps][kOutputs];
  const int rows = static_cast<int>(args.rows);
  int half = 0;
  for (int job = group.first; job < jobs; job += group.step, half ^= 1) {
    const int output0 = job * (kTiles * kTileOutputs);
    const int64_t block0 = output0 / static_cast<int>(args.group_out) * (args.w.in / 32);
    StreamInputs<kColumns> inputs;
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      inputs.x[c] = args.x.row(min(c * 8 + lane / 4, rows - 1)) + block0 * kStride + lane % 4 * 8;
    float acc[kTiles][kColumns][4];
    stream.run(inputs, acc);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) put_partial<kColumns>(partial[half][i][warp], acc[i]);
    group.sync();
    for (int i = group.thread(); i < kTiles * kOutputs; i += group.threads()) {
      const int output = i % (kTiles * kTileOutputs), row = i / (kTiles * kTileOutputs);
      if (row >= rows || output0 + output >= args.w.out) continue;
      const float sum = sum_slices<kProduct>(&partial[half][output / kTileOutputs][group.first_warp]
                                                     [output % kTileOutputs * (kColumns * 8) + row],
                                             kOutputs, group.slices.count());
      const int64_t at = row * args.w.out + output0 + output;
      if (args.y.elem == Elem::kBF16) {
        static_cast<Bf16*>(args.y.data)[at] = bf16_bits(sum);
      } else {
        static_cast<float*>(args.y.data)[at] = sum;
      }
    }
  }
}

template <Product kProduct, int kTiles, int kColumns>
void run(const Launch& launch, const LinearArgs& args) {
  static const cudaError_t allowed =
      cudaFuncSetAttribute(rows_kernel<kProduct, kTiles, kColumns>,
                           cudaFuncAttributeMaxDynamicSharedMemorySize, kRingBytes);
  check(allowed, "shared memory of rows_kernel");
  const int64_t jobs = (args.w.out + kTiles * kTileOutputs - 1) / (kTiles * kTileOutputs);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(jobs, 2 * launch.multiprocessors));
  start(rows_kernel<kProduct, kTiles, kColumns>, dim3(blocks), dim3(kStreamThreads), kRingBytes,
        launch.stream, args, static_cast<int>(jobs));
}

template <Product kProduct, int kColumns>
void run_tiles(const Launch& launch, const LinearArgs& args) {
  // Two tiles share what they read of the inputs; worth it where jobs remain plenty.
  if (args.w.out >= 128 * launch.multiprocessors && args.group_out % 32 == 0) {
    run<kProduct, 2, kColumns>(launch, args);
  } else {
    run<kProduct, 1, kColumns>(launch, args);
  }
}

template <Product kProduct>
void run_columns(const Launch& launch, const LinearArgs& args) {
  if (args.rows <= 8) {
    run_tiles<kProduct, 1>(launch, args);
  } else {
    run_tiles<kProduct, 2>(launch, args);
  }
}

}  // namespace

void linear_rows(const Launch& launch, Product product, const LinearArgs& args) {
  switch (product) {
    case Product::kF8:
      return run_columns<Product::kF8>(launch, args);
    case Product::kF4:
      return run_columns<Product::kF4>(launch, args);
    case Product::kBF16:
      return run_columns<Product::kBF16>(launch, args);
  }
}

}  // namespace peregrine::cuda
