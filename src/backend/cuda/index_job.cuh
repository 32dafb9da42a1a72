// What the kernels of index_select share: the lists of rows to score, and their place in scratch.
//
// A list of a step row is either all its visible rows, in order, or the rows of its candidate
// blocks, in order, of which the last may be past the visible ones. Scores are kept as keys: the
// bits of the score (bf16 or f32) made to grow with it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/backend.h"
#include "backend/cuda/common.cuh"

namespace peregrine::cuda {

template <typename T>
struct IndexKey;
template <>
struct IndexKey<Bf16> {
  using Type = uint16_t;
  static constexpr uint32_t kLowest = 0x007Fu;  // of minus infinity, and of every NaN
  static constexpr uint32_t kHighest = 0xFFFFu;
};
template <>
struct IndexKey<float> {
  using Type = uint32_t;
  static constexpr uint32_t kLowest = 0x007FFFFFu;
  static constexpr uint32_t kHighest = 0xFFFFFFFFu;
};
inline constexpr uint32_t kInvisibleKey = 1;  // below that of every score

// `score` is rounded as T says; both zeros have one key.
template <typename T>
__device__ inline typename IndexKey<T>::Type key_of(float score) {
  using Key = typename IndexKey<T>::Type;
  if (isnan(score)) return static_cast<Key>(IndexKey<T>::kLowest);
  if (score == 0) score = 0;
  const auto bits = static_cast<Key>(__float_as_uint(score) >> (32 - 8 * sizeof(Key)));
  constexpr auto kSign = static_cast<Key>(Key{1} << (8 * sizeof(Key) - 1));
  return static_cast<Key>((bits & kSign) != 0 ? ~bits : bits | kSign);
}

template <typename T>
struct IndexJob {
  using Key = typename IndexKey<T>::Type;

  const T* q;        // [rows, heads * dim]
  const T* weights;  // [rows, heads]
  int heads;
  int source;
  int ratio;
  bool reindex;
  bool publish;
  int top_rows;
  int top_blocks;
  int block_rows;
  Selection selected;
  Selection candidates;
  StepRows step;
  KvView kv;

  // Scratch of step rows first .. first + rows - 1.
  int first = 0;
  int rows = 0;
  int capacity = 0;                // scores of a list
  int chunks = 0;                  // pieces of a list that are reduced on their own
  int block_capacity = 0;          // blocks of a list, with publish
  Key* scores = nullptr;           // [rows][capacity]
  Key* best_keys = nullptr;        // [rows][chunks][top_rows]: the best of each chunk
  int32_t* best_places = nullptr;  // [rows][chunks][top_rows]: their places in the list
  Key* block_keys = nullptr;       // [rows][block_capacity]

  __device__ int visible(int row) const { return (step.pos[row] + 1) / ratio; }
  __device__ int length(int row) const {
    return reindex ? candidates.count[row] * block_rows : visible(row);
  }
  // Row number of a place in the list.
  __device__ int row_at(int row, int place) const {
    if (!reindex) return place;
    const int32_t* blocks = candidates.rows + static_cast<int64_t>(row) * candidates.capacity;
    return blocks[place / block_rows] * block_rows + place % block_rows;
  }
  __device__ Key* scores_of(int row) const {
    return scores + static_cast<int64_t>(row - first) * capacity;
  }
  __device__ int64_t best_at(int row, int chunk) const {
    return (static_cast<int64_t>(row - first) * chunks + chunk) * top_rows;
  }
};

// Scores all lists of the job. Refuses index head dimensions that no kernel takes.
template <typename T>
void score_lists(const Launch& launch, const IndexJob<T>& job, int dim);

}  // namespace peregrine::cuda
