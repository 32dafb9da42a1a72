// Choosing rows by index scores (spec: model.md 5.6, 5.7) in three kernels: scores as ordered keys
// in scratch, the best of every chunk of a list, and the best of those with, on request, the
// candidate blocks. The best of a list are among the best of its chunks, so both steps are exact,
// ties included.
//
// Grids are made for the longest list there can be; blocks beyond a list's own length leave at
// once, and every loop ends with the list, so the cost follows the length of each row.
//
// Bytes: a score is written once and read four times from cache; 2 bytes each with bf16 numerics.
#include <algorithm>

#include "backend/cuda/index_job.cuh"
#include "backend/cuda/indexer.h"
#include "backend/cuda/pdl.cuh"
#include "backend/cuda/refuse.h"
#include "backend/cuda/top_rows.cuh"

namespace peregrine::cuda {
namespace {

constexpr int kChunk = 8192;
constexpr int kThreads = 1024;
constexpr size_t kScratchBytes = size_t{96} << 20;  // of lists at a time, more only for one row

// Largest keys of the blocks that begin in the chunk. The block with the newest row always wins.
template <typename T>
__device__ void publish_blocks(const IndexJob<T>& job, int row, int begin, int end) {
  using Key = typename IndexJob<T>::Key;
  const int length = job.visible(row);
  const Key* scores = job.scores_of(row);
  Key* blocks = job.block_keys + static_cast<int64_t>(row - job.first) * job.block_capacity;
  const int first = (begin + job.block_rows - 1) / job.block_rows + static_cast<int>(threadIdx.x);
  for (int block = first; block * job.block_rows < end; block += kThreads) {
    const int block_end = min(length, (block + 1) * job.block_rows);
    uint32_t best = IndexKey<T>::kLowest;
    for (int i = block * job.block_rows; i < block_end; ++i)
      best = max(best, static_cast<uint32_t>(scores[i]));
    if (block == (length - 1) / job.block_rows) best = IndexKey<T>::kHighest;
    blocks[block] = static_cast<Key>(best);
  }
}

// blockIdx.x: chunk; blockIdx.y: step row.
template <typename T>
__global__ void __launch_bounds__(kThreads) chunk_kernel(IndexJob<T> job) {
  using Key = typename IndexJob<T>::Key;
  __shared__ TopRowsMemory<kThreads> memory;
  __shared__ Key keys[kChunk];
  grid_wait();
  grid_launch();
  const int row = job.first + static_cast<int>(blockIdx.y);
  const int begin = static_cast<int>(blockIdx.x) * kChunk;
  const int end = min(job.length(row), begin + kChunk);
  if (begin >= end) return;
  const Key* scores = job.scores_of(row);
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += kThreads)
    keys[i - begin] = scores[i];
  if (job.publish) publish_blocks(job, row, begin, end);
  __syncthreads();
  const int64_t out = job.best_at(row, static_cast<int>(blockIdx.x));
  choose_top<Key, kThreads>(
      end - begin, job.top_rows, 0, [&](int i) { return static_cast<uint32_t>(keys[i]); },
      [&](int position, int i) {
        job.best_keys[out + position] = keys[i];
        job.best_places[out + position] = begin + i;
      },
      memory);
}

// Candidates that are fewer than a selection: the lowest of the other visible rows join. All rows
// up to the last that joins are then selected, and the chosen ones above it move up. One thread.
__device__ int fill_up(int32_t* rows, int count, int wanted) {
  const int missing = wanted - count;
  if (missing <= 0) return count;
  int below = 0;  // chosen rows among the first missing + below rows
  while (below < count && rows[below] < missing + below) ++below;
  for (int i = count - 1; i >= below; --i) rows[i + missing] = rows[i];
  for (int i = 0; i < missing + below; ++i) rows[i] = i;
  return wanted;
}

template <typename T>
__device__ void select_rows(const IndexJob<T>& job, int row, TopRowsMemory<kThreads>& memory) {
  using Key = typename IndexJob<T>::Key;
  const int length = job.length(row);
  const int full = length / kChunk;  // each left top_rows entries
  const int n = full * job.top_rows + min(job.top_rows, length - full * kChunk);
  const Key* keys = job.best_keys + job.best_at(row, 0);
  const int32_t* places = job.best_places + job.best_at(row, 0);
  int32_t* rows = job.selected.rows + static_cast<int64_t>(row) * job.selected.capacity;
  int count = choose_top<Key, kThreads>(
      n, job.top_rows, job.reindex ? IndexKey<T>::kLowest : 0,
      [&](int i) { return static_cast<uint32_t>(keys[i]); },
      [&](int position, int i) { rows[position] = job.row_at(row, places[i]); }, memory);
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (job.reindex) count = fill_up(rows, count, min(job.top_rows, job.visible(row)));
  job.selected.count[row] = count;
}

template <typename T>
__device__ void select_blocks(const IndexJob<T>& job, int row, TopRowsMemory<kThreads>& memory) {
  using Key = typename IndexJob<T>::Key;
  const int blocks = (job.visible(row) + job.block_rows - 1) / job.block_rows;
  const Key* keys = job.block_keys + static_cast<int64_t>(row - job.first) * job.block_capacity;
  int32_t* out = job.candidates.rows + static_cast<int64_t>(row) * job.candidates.capacity;
  const int count = choose_top<Key, kThreads>(
      blocks, job.top_blocks, IndexKey<T>::kLowest,
      [&](int i) { return static_cast<uint32_t>(keys[i]); },
      [&](int position, int i) { out[position] = i; }, memory);
  if (threadIdx.x == 0) job.candidates.count[row] = count;
}

// blockIdx.x: step row; blockIdx.y: 0 selects rows, 1 publishes blocks.
template <typename T>
__global__ void __launch_bounds__(kThreads) final_kernel(IndexJob<T> job) {
  __shared__ TopRowsMemory<kThreads> memory;
  grid_wait();
  grid_launch();
  const int row = job.first + static_cast<int>(blockIdx.x);
  if (blockIdx.y == 0) {
    select_rows(job, row, memory);
  } else {
    select_blocks(job, row, memory);
  }
}

// Places the job's scratch; with a null base only measures.
template <typename T>
size_t place(std::byte* base, IndexJob<T>& job) {
  using Key = typename IndexJob<T>::Key;
  Carve carve(base);
  const auto rows = static_cast<size_t>(job.rows);
  const size_t best = rows * job.chunks * job.top_rows;
  job.scores = carve.template take<Key>(rows * job.capacity);
  job.best_keys = carve.template take<Key>(best);
  job.best_places = carve.template take<int32_t>(best);
  job.block_keys = carve.template take<Key>(rows * job.block_capacity);
  return carve.used();
}

template <typename T>
void select(const Launch& launch, IndexJob<T> job, int dim) {
  const int all = job.step.rows;
  job.rows = 1;
  const size_t row_bytes = place(nullptr, job);
  job.rows =
      static_cast<int>(std::clamp<size_t>(kScratchBytes / row_bytes, 1, static_cast<size_t>(all)));
  std::byte* scratch = launch.scratch.get(place(nullptr, job));
  place(scratch, job);
  const int at_once = job.rows;
  for (job.first = 0; job.first < all; job.first += at_once) {
    job.rows = std::min(at_once, all - job.first);
    score_lists(launch, job, dim);
    const auto rows = static_cast<unsigned>(job.rows);
    start(chunk_kernel<T>, dim3(static_cast<unsigned>(job.chunks), rows), dim3(kThreads), 0,
          launch.stream, job);
    start(final_kernel<T>, dim3(rows, job.publish ? 2 : 1), dim3(kThreads), 0, launch.stream, job);
  }
}

}  // namespace

void index_select(const Launch& launch, const IndexArgs& args, const StepRows& step,
                  const KvView& kv) {
  if (step.rows == 0) return;
  const ModelConfig& config = launch.config;
  const auto heads = static_cast<int>(args.weights.cols);
  const bool reindex = args.mode == IndexMode::kReindex;
  const bool publish = args.mode == IndexMode::kPublish;
  const int block_rows = std::max(1, config.candidate_block_size);
  const int longest = kv.max_pages * kv.rows_per_page;
  if (config.index_topk > kChunk) refuse("index_topk", config.index_topk, "at most 8192");
  with_act(launch.numerics, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    IndexJob<T> job{.q = static_cast<const T*>(args.q.data),
                    .weights = static_cast<const T*>(args.weights.data),
                    .heads = heads,
                    .source = args.source,
                    .ratio = args.ratio,
                    .reindex = reindex,
                    .publish = publish,
                    .top_rows = config.index_topk,
                    .top_blocks = config.candidate_topk_blocks,
                    .block_rows = block_rows,
                    .selected = args.selected,
                    .candidates = args.candidates,
                    .step = step,
                    .kv = kv};
    job.capacity = reindex ? config.candidate_topk_blocks * block_rows : longest;
    job.chunks = (job.capacity + kChunk - 1) / kChunk;
    job.block_capacity = publish ? (longest + block_rows - 1) / block_rows : 0;
    select(launch, job, static_cast<int>(args.q.cols) / heads);
  });
}

}  // namespace peregrine::cuda
