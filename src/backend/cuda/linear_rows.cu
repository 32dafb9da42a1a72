#include "backend/cuda/common.cuh"
#include "backend/cuda/linear_kernels.h"
#include "backend/cuda/pdl.cuh"
#include "backend/cuda/weight_stream.cuh"

namespace peregrine::cuda {
namespace {

constexpr int kThreads = kSlices * kWarp;

// A block: 16 outputs, a warp a slice.
template <Product kProduct, int kColumns>
__global__ void __launch_bounds__(kThreads) rows_kernel(LinearArgs args, int n_stages) {
  extern __shared__ __align__(128) std::byte shared[];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTileOutputs;
  const WeightTile tiles[1] = {weight_tile<kProduct>(args.w, first)};
  WeightStream<kProduct, 1, kColumns> stream(tiles, args.w.in, warp,
                                             shared + warp * n_stages * kStageBytes, n_stages);
  grid_wait();
  grid_launch();

  const int64_t offset = first / args.group_out * args.w.in;
  const uint16_t* x[kColumns];
  const float* x_scale[kColumns][2];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const int64_t row = c * 8 + lane / 4;
    x[c] = row < args.rows ? args.x.values + row * args.x.in + offset : nullptr;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t column = c * 8 + lane % 4 * 2 + i;
      x_scale[c][i] = args.x.scales + (column < args.rows ? column : 0) * (args.x.in / 32);
    }
  }
  float acc[1][kColumns][4];
  stream.run(x, x_scale, acc);

  constexpr int kOutputs = kTileOutputs * kColumns * 8;
  __shared__ float partial[kSlices][kOutputs];
  put_partial<kColumns>(partial[warp], acc[0]);
  __syncthreads();
  const int i = threadIdx.x;
  const int output = i % kTileOutputs, row = i / kTileOutputs;
  if (row >= kColumns * 8 || row >= args.rows || output >= tiles[0].valid) return;
  const float sum = sum_slices(&partial[0][output * (kColumns * 8) + row], kOutputs);
  const int64_t at = row * args.w.out + first + output;
  if (args.y.elem == Elem::kBF16) {
    static_cast<Bf16*>(args.y.data)[at] = bf16_bits(sum);
  } else {
    static_cast<float*>(args.y.data)[at] = sum;
  }
}

template <Product kProduct, int kColumns>
void run(const Launch& launch, const LinearArgs& args) {
  const int stages = stream_stages(kProduct, args.w.in, 1);
  const size_t shared = static_cast<size_t>(kSlices * stages * kStageBytes);
  static const cudaError_t allowed = cudaFuncSetAttribute(
      rows_kernel<kProduct, kColumns>, cudaFuncAttributeMaxDynamicSharedMemorySize,
      kSlices * kMaxStages * kStageBytes);
  check(allowed, "shared memory of rows_kernel");
  const auto grid = static_cast<unsigned>((args.w.out + kTileOutputs - 1) / kTileOutputs);
  start(rows_kernel<kProduct, kColumns>, dim3(grid), dim3(kThreads), shared, launch.stream, args,
        stages);
}

template <Product kProduct>
void run_columns(const Launch& launch, const LinearArgs& args) {
  if (args.rows <= 8) {
    run<kProduct, 1>(launch, args);
  } else {
    run<kProduct, 2>(launch, args);
  }
}

}  // namespace

void linear_rows(const Launch& launch, Product product, const LinearArgs& args) {
  switch (product) {
    case Product::kF8Codes:
      return run_columns<Product::kF8Codes>(launch, args);
    case Product::kF4Codes:
      return run_columns<Product::kF4Codes>(launch, args);
    case Product::kF8Plain:
      return run_columns<Product::kF8Plain>(launch, args);
    case Product::kBF16:
      return run_columns<Product::kBF16>(launch, args);
  }
}

}  // namespace peregrine::cuda
