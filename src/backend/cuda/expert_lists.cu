#include "backend/cuda/expert_lists.h"

#include <algorithm>

#include "backend/cuda/common.cuh"
#include "backend/cuda/pdl.cuh"

namespace peregrine::cuda {
namespace {

constexpr int kThreads = kMaxExperts;

// Sum of the values of lower threads; `sums` holds a value a warp.
__device__ int exclusive_scan(int value, int* sums) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int inclusive = value;
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int other = __shfl_up_sync(0xFFFFFFFFu, inclusive, distance);
    if (lane >= distance) inclusive += other;
  }
  __syncthreads();
  if (lane == kWarp - 1) sums[warp] = inclusive;
  __syncthreads();
  int before = lane < warp ? sums[lane] : 0;  // of the lower warps
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    before += __shfl_xor_sync(0xFFFFFFFFu, before, distance);
  return before + inclusive - value;
}

// One block; thread e owns expert e. The order of pairs inside an expert is arbitrary: no result
// depends on it.
__global__ void __launch_bounds__(kThreads)
    lists_kernel(const int32_t* ids, int rows, int active, int experts, int columns,
                 ExpertLists lists) {
  __shared__ int count[kMaxExperts], next[kMaxExperts], sums[kThreads / kWarp];
  const int tid = static_cast<int>(threadIdx.x);
  count[tid] = 0;
  grid_wait();
  grid_launch();
  __syncthreads();
  const int pairs = rows * active;
  for (int i = tid; i < pairs; i += kThreads) atomicAdd(&count[ids[i]], 1);
  __syncthreads();

  const bool shared = lists.slots > active;
  const int mine = count[tid];
  const int tiles = (mine + columns - 1) / columns;
  const int begin = (shared ? rows : 0) + exclusive_scan(mine, sums);
  const int first_tile = lists.shared_tiles + exclusive_scan(tiles, sums);
  next[tid] = begin;
  for (int i = 0; i < tiles; ++i) {
    lists.tiles[first_tile + i] = {tid, begin + i * columns, min(columns, mine - i * columns)};
  }
  if (tid == kThreads - 1) *lists.n_tiles = first_tile + tiles;
  for (int i = tid; i < lists.shared_tiles; i += kThreads)
    lists.tiles[i] = {experts, i * columns, min(columns, rows - i * columns)};
  if (shared) {
    for (int r = tid; r < rows; r += kThreads) lists.order[r] = r * lists.slots + active;
  }
  __syncthreads();
  for (int i = tid; i < pairs; i += kThreads)
    lists.order[atomicAdd(&next[ids[i]], 1)] = i / active * lists.slots + i % active;
}

}  // namespace

ExpertLists make_lists(const Launch& launch, const int32_t* ids, int64_t rows, int active,
                       int experts, bool shared, int columns, Carve& memory) {
  ExpertLists lists;
  lists.slots = active + (shared ? 1 : 0);
  lists.shared_tiles = shared ? static_cast<int>((rows + columns - 1) / columns) : 0;
  const int64_t pairs = rows * active;
  lists.max_tiles =
      lists.shared_tiles + static_cast<int>(std::min<int64_t>(experts, pairs) + pairs / columns);
  lists.order = memory.take<int32_t>(static_cast<size_t>(rows * lists.slots));
  lists.tiles = memory.take<ExpertTile>(static_cast<size_t>(lists.max_tiles));
  lists.n_tiles = memory.take<int32_t>(1);
  if (lists.order == nullptr) return lists;  // measuring
  start(lists_kernel, dim3(1), dim3(kThreads), 0, launch.stream, ids, static_cast<int>(rows),
        active, experts, columns, lists);
  return lists;
}

}  // namespace peregrine::cuda
