// Experts for few rows: every weight byte of a chosen expert is read once.
#include "backend/cuda/expert_kernels.h"
#include "backend/cuda/gated.cuh"
#include "backend/cuda/pdl.cuh"
#include "backend/cuda/weight_stream.cuh"

namespace peregrine::cuda {
namespace {

constexpr int kThreads = kSlices * kWarp;

// Where the columns of a tile read and write.
template <int kColumns>
struct Columns {
  int pair[kColumns];           // of column g, -1: none
  const uint16_t* x[kColumns];  // its inputs
  const float* x_scale[kColumns][2];
};

// `divide`: inputs belong to rows (pair / slots) instead of pairs.
template <int kColumns>
__device__ Columns<kColumns> columns_of(const ExpertTile& tile, const int32_t* order,
                                        const Prepared& input, int divide) {
  const int lane = threadIdx.x % kWarp;
  Columns<kColumns> columns;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const int mine = c * 8 + lane / 4;
    columns.pair[c] = mine < tile.count ? order[tile.begin + mine] : -1;
    columns.x[c] = mine < tile.count ? input.values + columns.pair[c] / divide * input.in : nullptr;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = c * 8 + lane % 4 * 2 + i;
      const int pair = order[tile.begin + (column < tile.count ? column : 0)];
      columns.x_scale[c][i] = input.scales + pair / divide * (input.in / 32);
    }
  }
  return columns;
}

template <Product kProduct, int kColumns>
__device__ void gate_up(const ExpertStep& step, const Expert& expert, const ExpertTile* known,
                        const Prepared& input, int n_stages, std::byte* shared) {
  const int warp = threadIdx.x / kWarp;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTileOutputs;
  const WeightTile tiles[2] = {weight_tile<kProduct>(expert.w1, first),
                               weight_tile<kProduct>(expert.w3, first)};
  WeightStream<kProduct, 2, kColumns> stream(tiles, step.dim, warp,
                                             shared + warp * n_stages * kStageBytes, n_stages);
  if (known == nullptr) {  // the shared expert: its weights are on their way already
    grid_wait();
    grid_launch();
    known = step.lists.tiles + blockIdx.y;
  }
  const ExpertTile tile = *known;
  const Columns<kColumns> columns =
      columns_of<kColumns>(tile, step.lists.order, input, step.lists.slots);
  float acc[2][kColumns][4];
  stream.run(columns.x, columns.x_scale, acc);

  constexpr int kOutputs = kTileOutputs * kColumns * 8;
  __shared__ float partial[2][kSlices][kOutputs];
  put_partial<kColumns>(partial[0][warp], acc[0]);
  put_partial<kColumns>(partial[1][warp], acc[1]);
  __syncthreads();
  const int output = threadIdx.x % kTileOutputs, column = threadIdx.x / kTileOutputs;
  if (column >= tile.count || output >= tiles[0].valid) return;
  const int at = output * (kColumns * 8) + column;
  const float a = round_bf16(sum_slices(&partial[0][0][at], kOutputs));
  const float b = round_bf16(sum_slices(&partial[1][0][at], kOutputs));
  const int pair = step.lists.order[tile.begin + column];
  const int slots = step.lists.slots;
  const int active = step.lists.shared_tiles > 0 ? slots - 1 : slots;
  const float weight =
      pair % slots == active ? 1.0f : step.weights[pair / slots * active + pair % slots];
  step.gated[pair * step.inner + first + output] =
      bf16_bits(gated(a, b, weight, step.swiglu_limit));
}

template <Product kRouted, int kColumns>
__global__ void __launch_bounds__(kThreads) gate_up_kernel(ExpertStep step, int n_stages) {
  extern __shared__ __align__(128) std::byte shared[];
  if (static_cast<int>(blockIdx.y) < step.lists.shared_tiles) {
    gate_up<Product::kF8Codes, kColumns>(step, step.shared, nullptr, step.shared_input, n_stages,
                                         shared);
    return;
  }
  grid_wait();
  grid_launch();
  if (static_cast<int>(blockIdx.y) >= *step.lists.n_tiles) return;
  const ExpertTile& tile = step.lists.tiles[blockIdx.y];
  gate_up<kRouted, kColumns>(step, step.table[tile.expert], &tile, step.routed_input, n_stages,
                             shared);
}

template <Product kProduct, int kColumns>
__device__ void down(const ExpertStep& step, const Expert& expert, const ExpertTile* known,
                     int n_stages, std::byte* shared) {
  const int warp = threadIdx.x / kWarp;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (2 * kTileOutputs);
  WeightTile tiles[2] = {weight_tile<kProduct>(expert.w2, first), {}};
  if (first + kTileOutputs < expert.w2.out)
    tiles[1] = weight_tile<kProduct>(expert.w2, first + kTileOutputs);
  else
    tiles[1] = {tiles[0].data, tiles[0].scale, 0};
  WeightStream<kProduct, 2, kColumns> stream(tiles, step.inner, warp,
                                             shared + warp * n_stages * kStageBytes, n_stages);
  if (known == nullptr) {
    grid_wait();
    grid_launch();
    known = step.lists.tiles + blockIdx.y;
  }
  const ExpertTile tile = *known;
  const Columns<kColumns> columns =
      columns_of<kColumns>(tile, step.lists.order, step.inner_input, 1);
  float acc[2][kColumns][4];
  stream.run(columns.x, columns.x_scale, acc);

  constexpr int kOutputs = kTileOutputs * kColumns * 8;
  __shared__ float partial[2][kSlices][kOutputs];
  put_partial<kColumns>(partial[0][warp], acc[0]);
  put_partial<kColumns>(partial[1][warp], acc[1]);
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * kOutputs; i += kThreads) {
    const int output = i % (2 * kTileOutputs), column = i / (2 * kTileOutputs);
    if (column >= tile.count || first + output >= step.dim) continue;
    const float sum = sum_slices(
        &partial[output / kTileOutputs][0][output % kTileOutputs * (kColumns * 8) + column],
        kOutputs);
    step.output[step.lists.order[tile.begin + column] * step.dim + first + output] = bf16_bits(sum);
  }
}

template <Product kRouted, int kColumns>
__global__ void __launch_bounds__(kThreads) down_kernel(ExpertStep step, int n_stages) {
  extern __shared__ __align__(128) std::byte shared[];
  if (static_cast<int>(blockIdx.y) < step.lists.shared_tiles) {
    down<Product::kF8Codes, kColumns>(step, step.shared, nullptr, n_stages, shared);
    return;
  }
  grid_wait();
  grid_launch();
  if (static_cast<int>(blockIdx.y) >= *step.lists.n_tiles) return;
  const ExpertTile& tile = step.lists.tiles[blockIdx.y];
  down<kRouted, kColumns>(step, step.table[tile.expert], &tile, n_stages, shared);
}

void run(const Launch& launch, void (*kernel)(ExpertStep, int), const ExpertStep& step, int64_t in,
         int64_t blocks) {
  // The shared expert's F8 rows are the longer ones.
  const int stages = stream_stages(Product::kF8Codes, in, 2);
  const size_t shared = static_cast<size_t>(kSlices * stages * kStageBytes);
  start(kernel, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(step.lists.max_tiles)),
        dim3(kThreads), shared, launch.stream, step, stages);
}

template <Product kRouted, int kColumns>
void run_gate_up(const Launch& launch, const ExpertStep& step) {
  static const cudaError_t allowed = cudaFuncSetAttribute(
      gate_up_kernel<kRouted, kColumns>, cudaFuncAttributeMaxDynamicSharedMemorySize,
      kSlices * kMaxStages * kStageBytes);
  check(allowed, "shared memory of gate_up_kernel");
  run(launch, gate_up_kernel<kRouted, kColumns>, step, step.dim,
      (step.inner + kTileOutputs - 1) / kTileOutputs);
}

template <Product kRouted, int kColumns>
void run_down(const Launch& launch, const ExpertStep& step) {
  static const cudaError_t allowed = cudaFuncSetAttribute(
      down_kernel<kRouted, kColumns>, cudaFuncAttributeMaxDynamicSharedMemorySize,
      kSlices * kMaxStages * kStageBytes);
  check(allowed, "shared memory of down_kernel");
  run(launch, down_kernel<kRouted, kColumns>, step, step.inner,
      (step.dim + 2 * kTileOutputs - 1) / (2 * kTileOutputs));
}

}  // namespace

void expert_rows_gate_up(const Launch& launch, const ExpertStep& step) {
  const bool f4 = step.routed_product == Product::kF4Codes;
  if (step.rows <= 8) {
    f4 ? run_gate_up<Product::kF4Codes, 1>(launch, step)
       : run_gate_up<Product::kF8Codes, 1>(launch, step);
  } else {
    f4 ? run_gate_up<Product::kF4Codes, 2>(launch, step)
       : run_gate_up<Product::kF8Codes, 2>(launch, step);
  }
}

void expert_rows_down(const Launch& launch, const ExpertStep& step) {
  const bool f4 = step.routed_product == Product::kF4Codes;
  if (step.rows <= 8) {
    f4 ? run_down<Product::kF4Codes, 1>(launch, step)
       : run_down<Product::kF8Codes, 1>(launch, step);
  } else {
    f4 ? run_down<Product::kF4Codes, 2>(launch, step)
       : run_down<Product::kF8Codes, 2>(launch, step);
  }
}

}  // namespace peregrine::cuda
