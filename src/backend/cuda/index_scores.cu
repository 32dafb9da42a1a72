// Scores of packed index keys (spec: model.md 5.6), on tensor cores: codes times power-of-two
// scales are bf16 numbers and their products exact, so only the f32 sums round.
//
// A warp widens 32 keys into registers as right-hand fragments and passes over the queries of up
// to four step rows of one sequence, whose fragments wait in shared memory. The dimensions of a
// key are dealt to the four lanes of a fragment in consecutive quarters, for queries and keys
// alike: a dot product does not mind, and a lane reads 16 bytes of a key with one scale.
//
// Bytes: 68 a key (128 dimensions) for every four rows, 2 a score written. 32 heads cost 8 kFLOP a
// key and row, so from four rows on the tensor cores are the limit.
#include <algorithm>

#include "backend/cuda/act_vector.cuh"
#include "backend/cuda/index_job.cuh"
#include "backend/cuda/packed_rows.cuh"
#include "backend/cuda/pdl.cuh"
#include "backend/cuda/refuse.h"
#include "formats/quantize.h"

namespace peregrine::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kGroupRows = 4;  // step rows that share widened keys
constexpr int kWarpKeys = 32;  // in four fragments of eight
constexpr int kFragments = kWarpKeys / 8;
constexpr int kBlockKeys = kWarps * kWarpKeys;

// kDim: dimensions of a key.
template <int kDimension>
struct KeyShape {
  static constexpr int kDim = kDimension;
  static constexpr int kLaneDims = kDim / 4;
  static constexpr int kSteps = kDim / 16;  // products of sixteen dimensions
  static constexpr int kLaneWords = kLaneDims / 8;
  static constexpr int kScales = kDim / kFp4E8m0Block;
};

// Shared memory: fragments [kGroupRows][head tiles][kSteps][lanes] of 16 bytes, then head weights
// [kGroupRows][16 * head tiles].
template <typename S>
struct Queries {
  uint32_t* fragments;
  float* weights;
  int head_tiles;

  __device__ Queries(unsigned char* memory, int heads) {
    head_tiles = (heads + 15) / 16;
    fragments = reinterpret_cast<uint32_t*>(memory);
    weights = reinterpret_cast<float*>(fragments + fragment_words(kGroupRows, head_tiles));
  }
  static __host__ __device__ int fragment_words(int rows, int head_tiles) {
    return rows * head_tiles * S::kSteps * kWarp * 4;
  }
  static size_t bytes(int heads) {
    const int tiles = (heads + 15) / 16;
    return (static_cast<size_t>(fragment_words(kGroupRows, tiles)) + kGroupRows * 16 * tiles) * 4;
  }
  __device__ const uint32_t* fragment(int row, int tile, int step) const {
    return fragments + ((row * head_tiles + tile) * S::kSteps + step) * kWarp * 4;
  }
  // Word of dimensions d and d + 1 of a head.
  __device__ uint32_t* word(int row, int head, int d) const {
    const int step = d % S::kLaneDims / 4;
    const int lane = head % 8 * 4 + d / S::kLaneDims;
    const int part = head % 16 / 8 + d % 4 / 2 * 2;
    return fragments + (((row * head_tiles + head / 16) * S::kSteps + step) * kWarp + lane) * 4 +
           part;
  }
};

// Quantises the queries of `count` rows to fp4 and lays them out; a thread takes 32 dimensions.
template <typename S, typename T>
__device__ void lay_out_queries(const IndexJob<T>& job, int row, int count,
                                const Queries<S>& queries) {
  const int heads = 16 * queries.head_tiles;
  for (int task = static_cast<int>(threadIdx.x); task < count * heads * S::kScales;
       task += kThreads) {
    const int block = task % S::kScales;
    const int head = task / S::kScales % heads;
    const int r = task / S::kScales / heads;
    float values[kFp4E8m0Block] = {};
    if (head < job.heads)
      load_vector(job.q + (static_cast<int64_t>(row + r) * job.heads + head) * S::kDim +
                      block * kFp4E8m0Block,
                  values);
    const float amax =
        formats_detail::block_amax(values, kFp4E8m0Block, formats_detail::kFp4E8m0Minimum);
    const float scale = e8m0_value(e8m0_ceil_scale(amax, kInverse6));
#pragma unroll
    for (float& value : values)
      value = e2m1_value(e2m1_code(formats_detail::clamp(value / scale, kE2m1Max))) * scale;
#pragma unroll
    for (int i = 0; i < kFp4E8m0Block; i += 2)
      *queries.word(r, head, block * kFp4E8m0Block + i) = narrow_pair(values[i], values[i + 1]);
  }
  for (int i = static_cast<int>(threadIdx.x); i < count * heads; i += kThreads) {
    const int head = i % heads;
    const int64_t at = static_cast<int64_t>(row + i / heads) * job.heads + head;
    queries.weights[i] = head < job.heads ? widen(job.weights[at]) : 0.0f;
  }
}

// This lane's quarter of a key as right-hand fragments; nullptr gives zeros.
template <typename S>
__device__ void widen_key(const uint8_t* key, uint32_t (&pairs)[S::kSteps][2]) {
  const int quarter = static_cast<int>(threadIdx.x) % 4;
  uint32_t words[S::kLaneWords] = {};
  uint32_t scale_byte = 127;
  if (key != nullptr) {
    const uint8_t* codes = key + quarter * S::kLaneDims / 2;
    if constexpr (S::kDim % 128 == 0) {
#pragma unroll
      for (int i = 0; i < S::kLaneWords; ++i)
        words[i] = reinterpret_cast<const uint32_t*>(codes)[i];
    } else {  // rows of such keys are aligned to two bytes
      const auto* halves = reinterpret_cast<const uint16_t*>(codes);
#pragma unroll
      for (int i = 0; i < S::kLaneWords; ++i)
        words[i] = halves[2 * i] | static_cast<uint32_t>(halves[2 * i + 1]) << 16;
    }
    scale_byte = key[S::kDim / 2 + quarter * S::kScales / 4];
  }
  const uint32_t scale = pair_of(e8m0_value(static_cast<uint8_t>(scale_byte)));
#pragma unroll
  for (int step = 0; step < S::kSteps; ++step) {
    e2m1_pairs(words[step / 2] >> (step % 2 * 16) & 0xFFFFu, pairs[step][0], pairs[step][1]);
    pairs[step][0] = multiply_pair(pairs[step][0], scale);
    pairs[step][1] = multiply_pair(pairs[step][1], scale);
  }
}

template <typename T>
__device__ float round_score(float x) {
  if constexpr (sizeof(T) == 2) return __bfloat162float(__float2bfloat16_rn(x));
  return x;
}

// Adds the parts of a head in the scores of two keys: products rounded, negative ones dropped (the
// comparison keeps a NaN), weighted and rounded again.
template <typename T>
__device__ void add_head(float product0, float product1, float weight, float& score0,
                         float& score1) {
  if constexpr (sizeof(T) == 2) {
    const uint32_t positive = narrow_positive_pair(product0, product1);
    float part0, part1;
    widen_pair(multiply_pair(positive, pair_of(weight)), part0, part1);
    score0 += part0;
    score1 += part1;
  } else {
    score0 += (product0 < 0 ? 0.0f : product0) * weight;
    score1 += (product1 < 0 ? 0.0f : product1) * weight;
  }
}

// Scores of the warp's 32 keys for one row: lane l returns that of key lane_key().
template <typename S, typename T>
__device__ float score_keys(const Queries<S>& queries, int row,
                            const uint32_t (&keys)[kFragments][S::kSteps][2]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float* weights = queries.weights + row * 16 * queries.head_tiles + lane / 4;
  float scores[2 * kFragments] = {};
  for (int tile = 0; tile < queries.head_tiles; ++tile) {
    float products[kFragments][4] = {};
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      const uint4 q = reinterpret_cast<const uint4*>(queries.fragment(row, tile, step))[lane];
      const uint32_t a[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
      for (int n = 0; n < kFragments; ++n)
        multiply_tiles(products[n], a, keys[n][step][0], keys[n][step][1]);
    }
    const float upper = weights[tile * 16], lower = weights[tile * 16 + 8];
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
      add_head<T>(products[n][0], products[n][1], upper, scores[2 * n], scores[2 * n + 1]);
      add_head<T>(products[n][2], products[n][3], lower, scores[2 * n], scores[2 * n + 1]);
    }
  }
  // The eight lanes of a column hold different heads: they add them up, each keeping one column.
#pragma unroll
  for (int level = 0; level < 3; ++level) {
    const int kept = kFragments >> level;
    const bool upper = (lane & 16 >> level) != 0;
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      if (i >= kept) continue;
      const float mine = upper ? scores[i + kept] : scores[i];
      const float other = upper ? scores[i] : scores[i + kept];
      scores[i] = mine + __shfl_xor_sync(0xFFFFFFFFu, other, 16 >> level);
    }
  }
  return round_score<T>(scores[0]);
}

// Which of the warp's keys a lane ends up with: column l / 4 of the eight it began with.
__device__ int lane_key(int lane) {
  const int column = lane / 4;
  return column / 2 * 8 + lane % 4 * 2 + column % 2;
}

// One run of rows with a common list.
template <typename S, typename T>
__device__ void score_run(const IndexJob<T>& job, int row, int count, const Queries<S>& queries) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  int longest = 0;
  for (int r = 0; r < count; ++r) longest = max(longest, job.length(row + r));
  const int stride = static_cast<int>(gridDim.x) * kBlockKeys;
  for (int base = static_cast<int>(blockIdx.x) * kBlockKeys + warp * kWarpKeys; base < longest;
       base += stride) {
    uint32_t keys[kFragments][S::kSteps][2];
    const int newest = job.visible(row + count - 1);
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
      const int place = base + n * 8 + lane / 4;
      const int number = place < longest ? job.row_at(row, place) : newest;
      widen_key<S>(
          number < newest ? job.kv.index_row(job.step.slot[row], job.source, number) : nullptr,
          keys[n]);
    }
    const int place = base + lane_key(lane);
    for (int r = 0; r < count; ++r) {
      const float score = score_keys<S, T>(queries, r, keys);
      if (place >= job.length(row + r)) continue;
      const bool seen = job.row_at(row, place) < job.visible(row + r);
      job.scores_of(row + r)[place] =
          seen ? key_of<T>(score) : static_cast<typename IndexJob<T>::Key>(kInvisibleKey);
    }
  }
}

// blockIdx.x strides over a list, blockIdx.y over groups of rows. Rows of one sequence are scored
// together; candidate lists differ from row to row.
template <typename S, typename T>
__global__ void __launch_bounds__(kThreads) scores_kernel(IndexJob<T> job) {
  extern __shared__ __align__(16) unsigned char memory[];
  grid_wait();
  grid_launch();
  const Queries<S> queries(memory, job.heads);
  const int begin = job.first + static_cast<int>(blockIdx.y) * kGroupRows;
  const int end = min(begin + kGroupRows, job.first + job.rows);
  for (int row = begin; row < end;) {
    int count = 1;
    while (!job.reindex && row + count < end && job.step.slot[row + count] == job.step.slot[row])
      ++count;
    // Of one segment the last row sees most.
    if (static_cast<int>(blockIdx.x) * kBlockKeys < job.length(row + count - 1)) {
      __syncthreads();  // the last run's queries have been used
      lay_out_queries(job, row, count, queries);
      __syncthreads();
      score_run(job, row, count, queries);
    }
    row += count;
  }
}

template <typename S, typename T>
void start_scores(const Launch& launch, const IndexJob<T>& job) {
  const size_t bytes = Queries<S>::bytes(job.heads);
  const auto kernel = scores_kernel<S, T>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "shared memory of index scores");
  constexpr int kBlocksOfProcessor = 4;
  const int groups = (job.rows + kGroupRows - 1) / kGroupRows;
  const int most = (job.capacity + kBlockKeys - 1) / kBlockKeys;
  const int enough = std::max(1, kBlocksOfProcessor * launch.multiprocessors / groups);
  const dim3 grid(static_cast<unsigned>(std::min(most, enough)), static_cast<unsigned>(groups));
  start(kernel, grid, dim3(kThreads), bytes, launch.stream, job);
}

}  // namespace

template <typename T>
void score_lists(const Launch& launch, const IndexJob<T>& job, int dim) {
  if (dim == 128) {
    start_scores<KeyShape<128>>(launch, job);
  } else if (dim == 64) {
    start_scores<KeyShape<64>>(launch, job);
  } else {
    refuse("index_head_dim", dim, "64 and 128");
  }
}

template void score_lists(const Launch&, const IndexJob<Bf16>&, int);
template void score_lists(const Launch&, const IndexJob<float>&, int);

}  // namespace peregrine::cuda
