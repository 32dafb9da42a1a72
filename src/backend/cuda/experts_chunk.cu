// Experts for many rows: grouped products on the tensor cores, tiles of 128 pairs of one expert.
#include "backend/cuda/chunk_tile.cuh"
#include "backend/cuda/common.cuh"
#include "backend/cuda/expert_kernels.h"
#include "backend/cuda/gated.cuh"
#include "backend/cuda/pdl.cuh"

namespace peregrine::cuda {
namespace {

constexpr int kInnerOutputs = kChunkOutputs / 2;  // of a block: gate and up side by side

// The block's tile of the lists, or null: blocks x past the tiles of this product.
__device__ const ExpertTile* tile_of(const ExpertStep& step, bool shared) {
  const int index = static_cast<int>(blockIdx.x) + (shared ? 0 : step.lists.shared_tiles);
  return !shared && index >= *step.lists.n_tiles ? nullptr : step.lists.tiles + index;
}

template <Product kProduct>
__global__ void __launch_bounds__(kChunkThreads, 1) gate_up_kernel(ExpertStep step, bool shared) {
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ int32_t x_rows[kChunkColumns];
  __shared__ uint16_t* out_rows[kChunkColumns];
  __shared__ float weight[kChunkColumns];
  grid_wait();
  grid_launch();
  const ExpertTile* tile = tile_of(step, shared);
  if (tile == nullptr) return;
  const Expert& expert = step.table[tile->expert];
  const int slots = step.lists.slots;
  const int active = step.lists.shared_tiles > 0 ? slots - 1 : slots;
  for (int c = threadIdx.x; c < kChunkColumns; c += kChunkThreads) {
    const bool exists = c < tile->count;
    const int pair = exists ? step.lists.order[tile->begin + c] : 0;
    x_rows[c] = exists ? pair / slots : -1;
    out_rows[c] = exists ? step.gated + pair * step.inner : nullptr;
    weight[c] = !exists || pair % slots == active
                    ? 1.0f
                    : step.weights[pair / slots * active + pair % slots];
  }
  __syncthreads();
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kInnerOutputs;
  const ChunkWeights<kProduct, true> weights{{expert.w1, expert.w3}, first};
  const Prepared& input = shared ? step.shared_input : step.routed_input;
  ChunkTile<kProduct, true> product(weights, input.values, input.scales, input.in, 0, x_rows,
                                    tile->count, memory);
  product.run();

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  auto* out = reinterpret_cast<uint16_t*>(memory);
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int n = i / 4, e = i % 4;
    const int output = warp / 2 * 16 + e / 2 * 8 + lane / 4;
    const int column = ChunkTile<kProduct, false>::first_column(warp, n) + lane % 4 * 2 + e % 2;
    out[column * (kInnerOutputs + 8) + output] =
        bf16_bits(gated(round_bf16(product.total(0, n, e)), round_bf16(product.total(1, n, e)),
                        weight[column], step.swiglu_limit));
  }
  __syncthreads();
  write_tile<kInnerOutputs>(out, out_rows, first, step.inner);
}

template <Product kProduct>
__global__ void __launch_bounds__(kChunkThreads, 1) down_kernel(ExpertStep step, bool shared) {
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ int32_t x_rows[kChunkColumns];
  __shared__ uint16_t* out_rows[kChunkColumns];
  grid_wait();
  grid_launch();
  const ExpertTile* tile = tile_of(step, shared);
  if (tile == nullptr) return;
  const Expert& expert = step.table[tile->expert];
  for (int c = threadIdx.x; c < kChunkColumns; c += kChunkThreads) {
    const bool exists = c < tile->count;
    x_rows[c] = exists ? step.lists.order[tile->begin + c] : -1;
    out_rows[c] = exists ? step.output + x_rows[c] * step.dim : nullptr;
  }
  __syncthreads();
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kChunkOutputs;
  const ChunkWeights<kProduct, false> weights{{expert.w2}, first};
  ChunkTile<kProduct, false> product(weights, step.inner_input.values, step.inner_input.scales,
                                     step.inner_input.in, 0, x_rows, tile->count, memory);
  product.run();

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  auto* out = reinterpret_cast<uint16_t*>(memory);
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    const int m = i / 32, n = i / 4 % 8, e = i % 4;
    const int output = warp / 2 * 32 + m * 16 + e / 2 * 8 + lane / 4;
    const int column = ChunkTile<kProduct, false>::first_column(warp, n) + lane % 4 * 2 + e % 2;
    out[column * (kChunkOutputs + 8) + output] = bf16_bits(product.total(m, n, e));
  }
  __syncthreads();
  write_tile<kChunkOutputs>(out, out_rows, first, step.dim);
}

// One launch for the shared expert's tiles and one for the routed ones.
void run(const Launch& launch, void (*f8)(ExpertStep, bool), void (*f4)(ExpertStep, bool),
         const ExpertStep& step, int64_t blocks) {
  constexpr int kF8 = ChunkTile<Product::kF8Codes, false>::kSharedBytes;
  constexpr int kF4 = ChunkTile<Product::kF4Codes, false>::kSharedBytes;
  const auto go = [&](bool shared, int tiles, Product product) {
    if (tiles == 0) return;
    const bool is_f4 = product == Product::kF4Codes;
    start(is_f4 ? f4 : f8, dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(blocks)),
          dim3(kChunkThreads), static_cast<size_t>(is_f4 ? kF4 : kF8), launch.stream, step, shared);
  };
  check(cudaFuncSetAttribute(f8, cudaFuncAttributeMaxDynamicSharedMemorySize, kF8),
        "experts_chunk");
  check(cudaFuncSetAttribute(f4, cudaFuncAttributeMaxDynamicSharedMemorySize, kF4),
        "experts_chunk");
  go(true, step.lists.shared_tiles, step.shared_product);
  go(false, step.lists.max_tiles - step.lists.shared_tiles, step.routed_product);
}

}  // namespace

void expert_chunk_gate_up(const Launch& launch, const ExpertStep& step) {
  run(launch, gate_up_kernel<Product::kF8Codes>, gate_up_kernel<Product::kF4Codes>, step,
      (step.inner + kInnerOutputs - 1) / kInnerOutputs);
}

void expert_chunk_down(const Launch& launch, const ExpertStep& step) {
  run(launch, down_kernel<Product::kF8Codes>, down_kernel<Product::kF4Codes>, step,
      (step.dim + kChunkOutputs - 1) / kChunkOutputs);
}

}  // namespace peregrine::cuda
