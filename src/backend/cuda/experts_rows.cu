// Experts for few rows: every weight byte of a chosen expert is read once.
#include "backend/cuda/expert_kernels.h"
#include "backend/cuda/gated.cuh"
#include "backend/cuda/pdl.cuh"
#include "backend/cuda/weight_stream.cuh"

namespace peregrine::cuda {
namespace {

// Jobs of the shared expert's tiles first, then of the routed ones; `per_tile` jobs a tile of
// pairs. kDown: a job is 32 outputs of w2, else 16 each of w1 and w3.
template <Product kProduct, bool kDown>
struct ExpertTiles {
  const Expert* table;
  const ExpertTile* pairs;
  int per_tile;

  __device__ const ExpertTile& tile(int job) const { return pairs[job / per_tile]; }
  __device__ int64_t output(int job) const {
    return static_cast<int64_t>(job % per_tile) * (kDown ? 2 * kTileOutputs : kTileOutputs);
  }
  __device__ void operator()(int job, WeightTile (&tiles)[2]) const {
    const Expert& expert = table[tile(job).expert];
    if constexpr (kDown) {
      tiles[0] = weight_tile<kProduct>(expert.w2, output(job));
      tiles[1] = weight_tile<kProduct>(expert.w2, output(job) + kTileOutputs);
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
  for (int c = 0; c < kColumns; ++c) {
    inputs.x[c] = input.row(pair(c * 8 + lane / 4)) + lane % 4 * 8;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      inputs.scale[c][i] = input.scale_row(pair(c * 8 + lane % 4 * 2 + i));
  }
  return inputs;
}

template <int kColumns>
using Partial = float[2][2][kSlices][kTileOutputs * kColumns * 8];

// The jobs first, first + step, ... below `jobs`. kDown: y = h . w2^T, else h = activation of
// u . w1^T and u . w3^T.
template <Product kProduct, bool kDown, int kColumns>
__device__ void run_jobs(const ExpertStep& step, const Prepared& input, int per_tile, int first,
                         int stride, int jobs, std::byte* ring, Partial<kColumns>& partial) {
  using Tiles = ExpertTiles<kProduct, kDown>;
  const Tiles tiles{step.table, step.lists.tiles, per_tile};
  WeightStream<kProduct, 2, kColumns, kStride, Tiles> stream(tiles, kDown ? step.inner : step.dim,
                                                             first, stride, jobs, ring);
  const int slots = step.lists.slots;
  const int active = step.lists.shared_tiles > 0 ? slots - 1 : slots;
  const int warp = threadIdx.x / kWarp;
  constexpr int kPitch = kColumns * 8;
  constexpr int kOutputs = kTileOutputs * kPitch;
  int half = 0;
  for (int job = first; job < jobs; job += stride, half ^= 1) {
    const ExpertTile tile = tiles.tile(job);
    const int64_t output0 = tiles.output(job);
    const StreamInputs<kColumns> inputs =
        inputs_of<kColumns>(tile, step.lists.order, input, kDown ? 1 : slots);
    float acc[2][kColumns][4];
    stream.run(inputs, acc);
    put_partial<kColumns>(partial[half][0][warp], acc[0]);
    put_partial<kColumns>(partial[half][1][warp], acc[1]);
    __syncthreads();
    constexpr int kJobOutputs = kDown ? 2 * kTileOutputs : kTileOutputs;
    for (int i = threadIdx.x; i < kJobOutputs * kPitch; i += kStreamThreads) {
      const int output = i % kJobOutputs, column = i / kJobOutputs;
      if (column >= tile.count) continue;
      const int pair = step.lists.order[tile.begin + column];
      const int at = output % kTileOutputs * kPitch + column;
      if constexpr (kDown) {
        if (output0 + output >= step.dim) continue;
        step.output[pair * step.dim + output0 + output] =
            bf16_bits(sum_slices(&partial[half][output / kTileOutputs][0][at], kOutputs));
      } else {
        if (output0 + output >= step.inner) continue;
        const float a = round_bf16(sum_slices(&partial[half][0][0][at], kOutputs));
        const float b = round_bf16(sum_slices(&partial[half][1][0][at], kOutputs));
        const float weight =
            pair % slots == active ? 1.0f : step.weights[pair / slots * active + pair % slots];
        step.gated[pair * step.inner + output0 + output] =
            bf16_bits(gated(a, b, weight, step.swiglu_limit));
      }
    }
  }
  // The next product's copies and sums use the same memory.
  async_wait<0>();
  __syncthreads();
}

template <Product kRouted, bool kDown, int kColumns>
__global__ void __launch_bounds__(kStreamThreads, 2) jobs_kernel(ExpertStep step, int per_tile) {
  extern __shared__ __align__(128) std::byte ring[];
  __shared__ Partial<kColumns> partial;
  grid_wait();
  grid_launch();
  const int stride = static_cast<int>(gridDim.x);
  const int shared_jobs = step.lists.shared_tiles * per_tile;
  int job = static_cast<int>(blockIdx.x);
  if (job < shared_jobs) {
    run_jobs<Product::kF8Codes, kDown, kColumns>(step, kDown ? step.inner_input : step.shared_input,
                                                 per_tile, job, stride, shared_jobs, ring, partial);
    job += (shared_jobs - job + stride - 1) / stride * stride;
  }
  const int jobs = *step.lists.n_tiles * per_tile;
  if (job < jobs) {
    run_jobs<kRouted, kDown, kColumns>(step, kDown ? step.inner_input : step.routed_input, per_tile,
                                       job, stride, jobs, ring, partial);
  }
}

template <Product kRouted, bool kDown, int kColumns>
void run(const Launch& launch, const ExpertStep& step) {
  static const cudaError_t allowed =
      cudaFuncSetAttribute(jobs_kernel<kRouted, kDown, kColumns>,
                           cudaFuncAttributeMaxDynamicSharedMemorySize, kRingBytes);
  check(allowed, "shared memory of jobs_kernel");
  const int64_t outputs = kDown ? step.dim : step.inner;
  constexpr int kJobOutputs = kDown ? 2 * kTileOutputs : kTileOutputs;
  start(jobs_kernel<kRouted, kDown, kColumns>,
        dim3(static_cast<unsigned>(2 * launch.multiprocessors)), dim3(kStreamThreads), kRingBytes,
        launch.stream, step, static_cast<int>((outputs + kJobOutputs - 1) / kJobOutputs));
}

template <bool kDown>
void run_product(const Launch& launch, const ExpertStep& step) {
  const bool f4 = step.routed_product == Product::kF4Codes;
  if (step.rows <= 8) {
    f4 ? run<Product::kF4Codes, kDown, 1>(launch, step)
       : run<Product::kF8Codes, kDown, 1>(launch, step);
  } else {
    f4 ? run<Product::kF4Codes, kDown, 2>(launch, step)
       : run<Product::kF8Codes, kDown, 2>(launch, step);
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
