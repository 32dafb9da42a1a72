// Experts for few rows: every weight byte of a chosen expert is read once.
#include "backend/cuda/expert_kernels.h"
#include "backend/cuda/gated.cuh"
#include "backend/cuda/pdl.cuh"
#include "backend/cuda/weight_stream.cuh"

namespace peregrine::cuda {
namespace {

// `per_tile` jobs a tile of pairs. kDown: a job is kTiles * 16 outputs of w2, else 16 each of w1
// and w3 (kTiles = 2).
template <Product kProduct, bool kDown, bool kShared, int kTiles>
struct ExpertTiles {
  static constexpr int kJobOutputs = kDown ? kTiles * kTileOutputs : kTileOutputs;
  const Expert& shared;  // kShared: the expert of all tiles
  const Expert* table;
  const ExpertTile* pairs;
  int per_tile;

  __device__ const ExpertTile& tile(int job) const { return pairs[job / per_tile]; }
  __device__ int64_t output(int job) const {
    return static_cast<int64_t>(job % per_tile) * kJobOutputs;
  }
  __device__ void operator()(int job, WeightTile (&tiles)[kTiles]) const {
    const Expert& expert = kShared ? shared : table[tile(job).expert];
    if constexpr (kDown) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
        tiles[i] = weight_tile<kProduct>(expert.w2, output(job) + i * kTileOutputs);
    } else {
      tiles[0] = weight_tile<kProduct>(expert.w1, output(job));
      tiles[1] = weight_tile<kProduct>(expert.w3, output(job));
    }
  }
};

constexpr int kStride = 32;  // inputs are gathered row by row

// `divide`: inputs belong to rows (pair / slots) instead of pairs.
template <int kColumns>
__device__ StreamInputs<kColumns> inputs_of(const ExpertTile& tile, const int32_t* order,
                                            const Prepared& input, int divide) {
  const int lane = threadIdx.x % kWarp;
  const auto pair = [&](int column) {
    return order[tile.begin + min(column, tile.count - 1)] / divide;
  };
  StreamInputs<kColumns> inputs;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) inputs.x[c] = input.row(pair(c * 8 + lane / 4)) + lane % 4 * 8;
  return inputs;
}

template <int kTiles, int kColumns>
using Partial = float[2][kTiles][kStreamWarps][kTileOutputs * kColumns * 8];

// The jobs of the shared expert or of the routed ones, handed out from block `from` on. kDown:
// y = h . w2^T, else h = activation of u . w1^T and u . w3^T.
template <Product kProduct, bool kDown, bool kShared, int kTiles, int kColumns>
__device__ void run_jobs(const ExpertStep& step, const Prepared& input, int per_tile, int from,
                         std::byte* ring, Partial<kTiles, kColumns>& partial) {
  using Tiles = ExpertTiles<kProduct, kDown, kShared, kTiles>;
  const ExpertLists& lists = step.lists;
  const Tiles tiles{step.shared, step.table, lists.tiles + (kShared ? 0 : lists.shared_tiles),
                    per_tile};
  const int jobs = (kShared ? lists.shared_tiles : *lists.n_tiles - lists.shared_tiles) * per_tile;
  const int64_t in = kDown ? step.inner : step.dim;
  const auto grid = static_cast<int>(gridDim.x);
  const StreamGroup group(kProduct, in, (static_cast<int>(blockIdx.x) + grid - from) % grid);
  WeightStream<kProduct, kTiles, kColumns, kStride, Tiles> stream(tiles, in, group, jobs, ring);
  if constexpr (kShared) {
    grid_wait();
    grid_launch();
  }
  const int slots = lists.slots;
  const int active = lists.shared_tiles > 0 ? slots - 1 : slots;
  const int warp = threadIdx.x / kWarp;
  constexpr int kPitch = kColumns * 8;
  constexpr int kOutputs = kTileOutputs * kPitch;
  int half = 0;
  for (int job = group.first; job < jobs; job += group.step, half ^= 1) {
    const ExpertTile tile = tiles.tile(job);
    const int64_t output0 = tiles.output(job);
    const StreamInputs<kColumns> inputs =
        inputs_of<kColumns>(tile, lists.order, input, kDown ? 1 : slots);
    float acc[kTiles][kColumns][4];
    stream.run(inputs, acc);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) put_partial<kColumns>(partial[half][i][warp], acc[i]);
    group.sync();
    const auto sum = [&](int matrix, int at) {
      return sum_slices<kProduct>(&partial[half][matrix][group.first_warp][at], kOutputs,
                                  group.slices.count());
    };
    constexpr int kJobOutputs = Tiles::kJobOutputs;
    for (int i = group.thread(); i < kJobOutputs * kPitch; i += group.threads()) {
      const int output = i % kJobOutputs, column = i / kJobOutputs;
      if (column >= tile.count) break;
      const int pair = lists.order[tile.begin + column];
      const int at = output % kTileOutputs * kPitch + column;
      if constexpr (kDown) {
        if (output0 + output >= step.dim) continue;
        step.output[pair * step.dim + output0 + output] = bf16_bits(sum(output / kTileOutputs, at));
      } else {
        if (output0 + output >= step.inner) continue;
        const float weight =
            pair % slots == active ? 1.0f : step.weights[pair / slots * active + pair % slots];
        step.gated[pair * step.inner + output0 + output] = bf16_bits(
            gated(round_bf16(sum(0, at)), round_bf16(sum(1, at)), weight, step.swiglu_limit));
      }
    }
  }
  // The next product's copies and sums use the same memory.
  async_wait<0>();
  __syncthreads();
}

template <Product kRouted, bool kDown, int kTiles, int kColumns>
__global__ void __launch_bounds__(kStreamThreads, 2) jobs_kernel(ExpertStep step, int per_tile) {
  extern __shared__ __align__(128) std::byte ring[];
  __shared__ Partial<kTiles, kColumns> partial;
  const int shared_jobs = step.lists.shared_tiles * per_tile;
  if (shared_jobs > 0) {  // its weights are known before the routing is
    run_jobs<Product::kF8, kDown, true, kTiles, kColumns>(
        step, kDown ? step.inner_input : step.shared_input, per_tile, 0, ring, partial);
  } else {
    grid_wait();
    grid_launch();
  }
  run_jobs<kRouted, kDown, false, kTiles, kColumns>(
      step, kDown ? step.inner_input : step.routed_input, per_tile,
      shared_jobs % static_cast<int>(gridDim.x), ring, partial);
}

template <Product kRouted, bool kDown, int kTiles, int kColumns>
void run(const Launch& launch, const ExpertStep& step) {
  static const cudaError_t allowed =
      cudaFuncSetAttribute(jobs_kernel<kRouted, kDown, kTiles, kColumns>,
                           cudaFuncAttributeMaxDynamicSharedMemorySize, kRingBytes);
  check(allowed, "shared memory of jobs_kernel");
  const int64_t outputs = kDown ? step.dim : step.inner;
  constexpr int kJobOutputs = ExpertTiles<kRouted, kDown, false, kTiles>::kJobOutputs;
  start(jobs_kernel<kRouted, kDown, kTiles, kColumns>,
        dim3(static_cast<unsigned>(2 * launch.multiprocessors)), dim3(kStreamThreads), kRingBytes,
        launch.stream, step, static_cast<int>((outputs + kJobOutputs - 1) / kJobOutputs));
}

// One row's experts have so few outputs that jobs of one tile occupy twice as many warps.
template <Product kRouted, bool kDown>
void run_columns(const Launch& launch, const ExpertStep& step) {
  if (kDown && step.rows == 1) {
    run<kRouted, kDown, kDown ? 1 : 2, 1>(launch, step);
  } else if (step.rows <= 8) {
    run<kRouted, kDown, 2, 1>(launch, step);
  } else {
    run<kRouted, kDown, 2, 2>(launch, step);
  }
}

template <bool kDown>
void run_product(const Launch& launch, const ExpertStep& step) {
  if (step.routed_product == Product::kF4) {
    run_columns<Product::kF4, kDown>(launch, step);
  } else {
    run_columns<Product::kF8, kDown>(launch, step);
  }
}

}  // namespace

void expert_rows_gate_up(const Launch& launch, const ExpertStep& step) {
  run_product<false>(launch, step);
}

void expert_rows_down(const Launch& launch, const ExpertStep& step) {
  run_product<true>(launch, step);
}

}  // namespace peregrine::cuda
