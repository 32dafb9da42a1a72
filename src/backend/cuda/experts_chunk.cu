// Experts for many rows: grouped products on the tensor cores, tiles of up to 128 pairs of one
// expert.
#include "backend/cuda/chunk_tile.cuh"
#include "backend/cuda/common.cuh"
#include "backend/cuda/expert_kernels.h"
#include "backend/cuda/gated.cuh"
#include "backend/cuda/pdl.cuh"

namespace peregrine::cuda {
namespace {

constexpr int kInnerOutputs = kChunkOutputs / 2;  // of a block: gate and up side by side

// The block's tile of the lists, or null: blocks y past the tiles of this product.
__device__ const ExpertTile* tile_of(const ExpertStep& step, bool shared) {
  const int index = static_cast<int>(blockIdx.y) + (shared ? 0 : step.lists.shared_tiles);
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
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kInnerOutputs;
  const ChunkWeights<kProduct, true> weights{{expert.w1, expert.w3}, first};
  const Prepared& input = shared ? step.shared_input : step.routed_input;
  using Tile = ChunkTile<kProduct, true>;
  Tile product(weights, input, 0, x_rows, memory);
  auto* out = reinterpret_cast<uint16_t*>(memory);
  with_columns(tile->count, [&](auto covered) {
    constexpr int kN = covered;
    float total[kN / 2];
    product.template run<kN>(total);
    const int output = Tile::first_row() / 16 * 8 + Tile::first_row() % 8;
#pragma unroll
    for (int i = 0; i < kN / 4; ++i) {
      const int n = i / 2, e = i % 2, column = Tile::column(n, e);
      out[column * (kInnerOutputs + 8) + output] =
          bf16_bits(gated(round_bf16(total[n * 4 + e]), round_bf16(total[n * 4 + 2 + e]),
                          weight[column], step.swiglu_limit));
    }
  });
  __syncthreads();
  write_tile<kInnerOutputs>(out, tile->count, out_rows, first, step.inner);
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
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kChunkOutputs;
  const ChunkWeights<kProduct, false> weights{{expert.w2}, first};
  using Tile = ChunkTile<kProduct, false>;
  Tile product(weights, step.inner_input, 0, x_rows, memory);
  auto* out = reinterpret_cast<uint16_t*>(memory);
  with_columns(tile->count, [&](auto covered) {
    constexpr int kN = covered;
    float total[kN / 2];
    product.template run<kN>(total);
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) {
      out[Tile::column(i / 4, i) * (kChunkOutputs + 8) + Tile::first_row() + i % 4 / 2 * 8] =
          bf16_bits(total[i]);
    }
  });
  __syncthreads();
  write_tile<kChunkOutputs>(out, tile->count, out_rows, first, step.dim);
}

// Neighbouring blocks share the rows of a tile, which are gathered, and stream the weights.
// One launch for the shared expert's tiles and one for the routed ones.
void run(const Launch& launch, void (*f8)(ExpertStep, bool), void (*f4)(ExpertStep, bool),
         const ExpertStep& step, int64_t blocks) {
  constexpr int kF8 = ChunkTile<Product::kF8, false>::kSharedBytes;
  constexpr int kF4 = ChunkTile<Product::kF4, false>::kSharedBytes;
  const auto go = [&](bool shared, int tiles, Product product) {
    if (tiles == 0) return;
    const bool is_f4 = product == Product::kF4;
    start(is_f4 ? f4 : f8, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(tiles)),
          dim3(kChunkThreads), static_cast<size_t>(is_f4 ? kF4 : kF8), launch.stream, step, shared);
  };
  check(cudaFuncSetAttribute(f8, cudaFuncAttributeMaxDynamicSharedMemorySize, kF8),
        "experts_chunk");
  check(cudaFuncSetAttribute(f4, cudaFuncAttributeMaxDynamicSharedMemorySize, kF4),
        "experts_chunk");
  go(true, step.lists.shared_tiles, Product::kF8);
  go(false, step.lists.max_tiles - step.lists.shared_tiles, step.routed_product);
}

}  // namespace

void expert_chunk_gate_up(const Launch& launch, const ExpertStep& step) {
  run(launch, gate_up_kernel<Product::kF8>, gate_up_kernel<Product::kF4>, step,
      (step.inner + kInnerOutputs - 1) / kInnerOutputs);
}

void expert_chunk_down(const Launch& launch, const ExpertStep& step) {
  run(launch, down_kernel<Product::kF8>, down_kernel<Product::kF4>, step,
      (step.dim + kChunkOutputs - 1) / kChunkOutputs);
}

}  // namespace peregrine::cuda
