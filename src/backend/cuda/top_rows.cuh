// The best entries of a list by a radix selection in one block.
//
// Keys are unsigned numbers, larger is better; of equal keys the lower index wins. Chosen entries
// come out in ascending order of their indices. Everything counted is an integer, so atomic
// additions leave nothing to chance.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/common.cuh"

namespace peregrine::cuda {

template <int kThreads>
struct TopRowsMemory {
  static constexpr int kWarps = kThreads / kWarp;
  int histogram[256];
  int better[kWarps], equal[kWarps];  // entries of each warp's part of the list
  uint32_t threshold;
  int ties;
};

// All entries with a key above the threshold are chosen, and the first `ties` that equal it.
struct Threshold {
  uint32_t key;
  int ties;
};

// Narrows `threshold` to the digit, `shift` bits up, that holds the last of the `ties` best
// entries.
template <int kThreads>
__device__ void choose_digit(int shift, TopRowsMemory<kThreads>& memory) {
  if (threadIdx.x >= kWarp) return;
  // Lane l has the eight digits from 255 - 8 l downwards.
  const int lane = static_cast<int>(threadIdx.x);
  int counts[8], sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    counts[i] = memory.histogram[255 - 8 * lane - i];
    sum += counts[i];
  }
  int through = sum;  // entries in this lane's digits and better ones
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int other = __shfl_up_sync(0xFFFFFFFFu, through, distance);
    if (lane >= distance) through += other;
  }
  const int wanted = memory.ties;
  int before = through - sum;
  __syncwarp();
  if (before < wanted && wanted <= through) {
    int i = 0;
    while (before + counts[i] < wanted) before += counts[i++];
    memory.threshold |= static_cast<uint32_t>(255 - 8 * lane - i) << shift;
    memory.ties = wanted - before;
  }
}

// The threshold that chooses exactly k of n > k entries.
template <typename Key, int kThreads, typename Load>
__device__ Threshold find_threshold(int n, int k, Load load, TopRowsMemory<kThreads>& memory) {
  if (threadIdx.x == 0) {
    memory.threshold = 0;
    memory.ties = k;
  }
  for (int shift = 8 * static_cast<int>(sizeof(Key)) - 8; shift >= 0; shift -= 8) {
    for (int i = static_cast<int>(threadIdx.x); i < 256; i += kThreads) memory.histogram[i] = 0;
    __syncthreads();
    const uint32_t higher = memory.threshold >> shift >> 8;
    for (int base = 0; base < n; base += kThreads) {
      const int i = base + static_cast<int>(threadIdx.x);
      const uint32_t key = i < n ? load(i) : 0;
      const bool counts = i < n && key >> shift >> 8 == higher;
      // One addition for all threads of the warp with this digit: scores crowd in few of them.
      const uint32_t digit = counts ? key >> shift & 255u : 256u;
      const unsigned same = __match_any_sync(0xFFFFFFFFu, digit);
      if (counts && static_cast<int>(threadIdx.x) % kWarp == __ffs(static_cast<int>(same)) - 1)
        atomicAdd(&memory.histogram[digit], __popc(same));
    }
    __syncthreads();
    choose_digit(shift, memory);
    __syncthreads();
  }
  return {memory.threshold, memory.ties};
}

// Calls emit(position, index) for the k best of n entries whose key is above `least`, and returns
// how many those are. load(index) gives a key; all threads of the block call this.
template <typename Key, int kThreads, typename Load, typename Emit>
__device__ int choose_top(int n, int k, uint32_t least, Load load, Emit emit,
                          TopRowsMemory<kThreads>& memory) {
  constexpr int kWarps = kThreads / kWarp;
  Threshold threshold{least, 0};
  if (n > k) threshold = find_threshold<Key>(n, k, load, memory);
  if (threshold.key <= least) threshold = {least, 0};

  // Warps own consecutive parts of the list: first they count, then they write.
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int part = (n + kThreads - 1) / kThreads * kWarp;
  const int begin = min(n, warp * part);
  const int end = min(n, begin + part);
  int better = 0, equal = 0;
  for (int i = begin + lane; i < end; i += kWarp) {
    const uint32_t key = load(i);
    better += key > threshold.key;
    equal += key == threshold.key;
  }
  better = __reduce_add_sync(0xFFFFFFFFu, better);
  equal = __reduce_add_sync(0xFFFFFFFFu, equal);
  if (lane == 0) {
    memory.better[warp] = better;
    memory.equal[warp] = equal;
  }
  __syncthreads();
  int better_before = 0, equal_before = 0, total_better = 0, total_equal = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp) {
      better_before = total_better;
      equal_before = total_equal;
    }
    total_better += memory.better[w];
    total_equal += memory.equal[w];
  }
  for (int base = begin; base < end; base += kWarp) {
    const int i = base + lane;
    const uint32_t key = i < end ? load(i) : 0;
    const unsigned below = (1u << lane) - 1;
    const unsigned are_better = __ballot_sync(0xFFFFFFFFu, i < end && key > threshold.key);
    const unsigned are_equal = __ballot_sync(0xFFFFFFFFu, i < end && key == threshold.key);
    const int rank = equal_before + __popc(are_equal & below);
    const bool chosen =
        (are_better >> lane & 1) != 0 || ((are_equal >> lane & 1) != 0 && rank < threshold.ties);
    if (chosen) emit(better_before + __popc(are_better & below) + min(rank, threshold.ties), i);
    better_before += __popc(are_better);
    equal_before += __popc(are_equal);
  }
  return total_better + min(total_equal, threshold.ties);
}

}  // namespace peregrine::cuda
