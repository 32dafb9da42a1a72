// Sparse attention on tensor cores, straight from packed rows: keys are values, one row of kDim
// numbers shared by all heads.
//
// The dimensions of a row are cut into slices, one for each block of a cluster. A block widens its
// slice of every entry once, multiplies it with its slice of the queries, and the partial scores
// are added across the cluster in ascending order of the slices. Each block then makes the weights
// of its share of the heads, gives them to the whole cluster, and multiplies them with its slice.
// The cut is the same for every number of rows, as is the order of every sum; the variants below
// differ in heads a block and in how much of a list is resident, which changes no sum.
//
// Bytes: a list's packed rows once for every kHeads heads (528 a window row, 288 a compressed row
// at the released shape), queries and output once. With 64 heads and 640 entries a query costs
// 84 MFLOP and 215 kB: one row is bound by latency, many rows by tensor cores and widening.
#include <cooperative_groups.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "backend/cuda/attention_kernels.h"
#include "backend/cuda/attention_list.cuh"
#include "backend/cuda/common.cuh"
#include "backend/cuda/packed_rows.cuh"
#include "backend/cuda/pdl.cuh"
#include "formats/quantize.h"

namespace peregrine::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kTileRows = 64;  // entries that share a running maximum
constexpr float kMaximumStart = -1e30f;
constexpr float kInfinity = INFINITY;
constexpr int kPiece = 16;  // dimensions that a thread widens at once

// kHeadTiles: sixteens of heads of a block. kLoadTiles: tiles of the list resident at a time.
// kScoreTiles: tiles whose scores are exchanged at a time.
template <int kDimension, int kHeadTiles, int kLoadTiles, int kScoreTiles>
struct Shape {
  static constexpr int kDim = kDimension;
  static constexpr int kSlices = kDim / 128 > 0 ? kDim / 128 : 1;
  static constexpr int kSlice = kDim / kSlices;
  static constexpr int kTilesOfHeads = kHeadTiles;
  static constexpr int kHeads = 16 * kHeadTiles;
  static constexpr int kOwned = kHeads / kSlices;  // heads whose weights a block makes
  static constexpr int kLoadRows = kTileRows * kLoadTiles;
  static constexpr int kTiles = kScoreTiles;
  static constexpr int kScoreRows = kTileRows * kScoreTiles;
  // Strides that keep the rows of a fragment in different banks.
  static constexpr int kValueStride = kSlice + 8;
  static constexpr int kScoreStride = kScoreRows + 8;
  static_assert(kLoadTiles % kScoreTiles == 0 && kHeads % kSlices == 0);
};

template <typename S>
struct Memory {
  alignas(16) Bf16 values[S::kLoadRows][S::kValueStride];
  alignas(16) Bf16 queries[S::kHeads][S::kValueStride];
  union {
    alignas(16) float scores[S::kHeads][S::kScoreStride];  // of this slice
    const uint8_t* entries[S::kLoadRows];                  // while rows are loaded
  };
  alignas(16) Bf16 weights[S::kHeads][S::kScoreStride];
  float rescales[S::kHeads][S::kTiles];  // of what earlier tiles added
  float denominators[S::kHeads];
};

struct TileArgs {
  ListArgs list;
  const Bf16* q;  // [rows, heads * dim]
  Bf16* out;
  const float* sinks;  // [heads]
  int heads;
  float scale;
};

// ---- loading ----------------------------------------------------------------------------------

// Sixteen codes of a row and their scale as they are stored.
struct Piece {
  uint32_t words[4];  // four e4m3 codes each, or (the first two) eight e2m1 codes each
  uint32_t scale;
};

// kWords words from an address that is aligned to them all, or to two bytes.
template <int kWords, bool kAligned>
__device__ void load_words(const uint8_t* at, uint32_t* words) {
  if constexpr (!kAligned) {
    const auto* halves = reinterpret_cast<const uint16_t*>(at);
#pragma unroll
    for (int i = 0; i < kWords; ++i)
      words[i] = halves[2 * i] | static_cast<uint32_t>(halves[2 * i + 1]) << 16;
  } else if constexpr (kWords == 4) {
    const uint4 v = *reinterpret_cast<const uint4*>(at);
    words[0] = v.x;
    words[1] = v.y;
    words[2] = v.z;
    words[3] = v.w;
  } else {
    const uint2 v = *reinterpret_cast<const uint2*>(at);
    words[0] = v.x;
    words[1] = v.y;
  }
}

template <typename S>
__device__ void load_piece(const uint8_t* row, bool windowed, int dim, Piece& piece) {
  constexpr bool kAligned = S::kDim % 256 == 0;
  if (row == nullptr) return;
  if (windowed) {
    load_words<4, kAligned>(row + dim, piece.words);
    piece.scale = row[S::kDim + dim / kActBlock];
  } else {
    load_words<2, kAligned>(row + dim / 2, piece.words);
    piece.scale = row[S::kDim / 2 + dim / kFp4E4m3Block];
  }
}

__device__ void widen_piece(const Piece& piece, bool windowed, uint32_t (&pairs)[8]) {
  if (windowed) {
    const uint32_t scale = pair_of(e8m0_value(static_cast<uint8_t>(piece.scale)));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[2 * i] = multiply_pair(e4m3_pair<0>(piece.words[i]), scale);
      pairs[2 * i + 1] = multiply_pair(e4m3_pair<1>(piece.words[i]), scale);
    }
  } else {
    const uint32_t scale = pair_of(e4m3_value(static_cast<uint8_t>(piece.scale)));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t low, high;
      e2m1_pairs(piece.words[i / 2] >> (i % 2 * 16) & 0xFFFFu, low, high);
      pairs[2 * i] = multiply_pair(low, scale);
      pairs[2 * i + 1] = multiply_pair(high, scale);
    }
  }
}

// Widens this block's slice of entries begin .. begin + kLoadRows - 1; rows past the end of the
// list, up to the end of its last tile, become zeros.
template <typename S>
__device__ void load_values(const TileArgs& args, const QueryList& list, int begin, int slice,
                            Memory<S>& memory) {
  const int thread = static_cast<int>(threadIdx.x);
  const int live = min(S::kLoadRows, list.rows - begin);
  for (int i = thread; i < live; i += kThreads)
    memory.entries[i] = entry_row(args.list, list, begin + i);
  __syncthreads();

  constexpr int kPieces = S::kSlice / kPiece;  // of a row
  constexpr int kRowsAtOnce = kThreads / kPieces;
  constexpr int kBatch = std::min(10, S::kLoadRows / kRowsAtOnce);  // loads in flight
  const int filled = (live + kTileRows - 1) / kTileRows * kTileRows;
  const int dim = thread % kPieces * kPiece;
  for (int first = thread / kPieces; first < filled; first += kRowsAtOnce * kBatch) {
    Piece pieces[kBatch] = {};
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int row = first + b * kRowsAtOnce;
      load_piece<S>(row < live ? memory.entries[row] : nullptr, begin + row < list.window_rows,
                    slice * S::kSlice + dim, pieces[b]);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int row = first + b * kRowsAtOnce;
      uint32_t pairs[8];
      widen_piece(pieces[b], begin + row < list.window_rows, pairs);
      if (row < filled) {
        auto* to = reinterpret_cast<uint4*>(&memory.values[row][dim]);
        to[0] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        to[1] = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
      }
    }
  }
  __syncthreads();
}

template <typename S>
__device__ void load_queries(const TileArgs& args, int row, int first_head, int slice,
                             Memory<S>& memory) {
  constexpr int kUnits = S::kSlice / 8;  // of 16 bytes
  for (int i = static_cast<int>(threadIdx.x); i < S::kHeads * kUnits; i += kThreads) {
    const int head = i / kUnits;
    const int unit = i % kUnits;
    uint4 q = make_uint4(0, 0, 0, 0);
    if (first_head + head < args.heads) {
      const int64_t at = (static_cast<int64_t>(row) * args.heads + first_head + head) * S::kDim +
                         slice * S::kSlice + unit * 8;
      q = *reinterpret_cast<const uint4*>(args.q + at);
    }
    *reinterpret_cast<uint4*>(&memory.queries[head][unit * 8]) = q;
  }
}

// ---- products ---------------------------------------------------------------------------------

// Scores of the resident rows from `base`, over this slice. A warp takes an eighth of the rows.
template <typename S>
__device__ void partial_scores(int base, int live, Memory<S>& memory) {
  constexpr int kWarpTiles = S::kScoreRows / kWarps / 8;  // eights of rows
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first = static_cast<int>(threadIdx.x) / kWarp * kWarpTiles * 8;
  if (first >= live) return;
  float sums[S::kTilesOfHeads][kWarpTiles][4] = {};
#pragma unroll
  for (int dim = 0; dim < S::kSlice; dim += 32) {
    uint32_t queries[2][S::kTilesOfHeads][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int h = 0; h < S::kTilesOfHeads; ++h)
        load_matrices(&memory.queries[h * 16 + lane % 16][dim + half * 16 + lane / 16 * 8],
                      queries[half][h]);
    }
#pragma unroll
    for (int n = 0; n < kWarpTiles; ++n) {
      uint32_t keys[4];  // 32 dimensions of eight rows
      load_matrices(&memory.values[base + first + n * 8 + lane % 8][dim + lane / 8 * 8], keys);
#pragma unroll
      for (int h = 0; h < S::kTilesOfHeads; ++h) {
        multiply_tiles(sums[h][n], queries[0][h], keys[0], keys[1]);
        multiply_tiles(sums[h][n], queries[1][h], keys[2], keys[3]);
      }
    }
  }
#pragma unroll
  for (int h = 0; h < S::kTilesOfHeads; ++h) {
#pragma unroll
    for (int n = 0; n < kWarpTiles; ++n) {
      const int head = h * 16 + lane / 4;
      const int column = first + n * 8 + lane % 4 * 2;
      *reinterpret_cast<float2*>(&memory.scores[head][column]) =
          make_float2(sums[h][n][0], sums[h][n][1]);
      *reinterpret_cast<float2*>(&memory.scores[head + 8][column]) =
          make_float2(sums[h][n][2], sums[h][n][3]);
    }
  }
}

// What the tiles so far add up to for a head, relative to its largest score so far.
struct Running {
  float maximum = kMaximumStart;
  float denominator = 0;
};

template <typename S>
__device__ Memory<S>* of_block(Memory<S>& memory, int slice) {
  if constexpr (S::kSlices == 1) return &memory;
  return cg::this_cluster().map_shared_rank(&memory, slice);
}

// Weights of one head for `live` entries, by one warp: lane l has entries 2 l and 2 l + 1 of every
// tile.
template <typename S>
__device__ void make_weights(const TileArgs& args, int head, float sink, int live,
                             Memory<S>& memory, Running& running) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float2 scores[S::kTiles];
#pragma unroll
  for (int t = 0; t < S::kTiles; ++t) scores[t] = make_float2(0, 0);
#pragma unroll
  for (int slice = 0; slice < S::kSlices; ++slice) {
    const Memory<S>* block = of_block(memory, slice);
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
      if (t * kTileRows >= live) continue;
      const float2 part =
          *reinterpret_cast<const float2*>(&block->scores[head][t * kTileRows + 2 * lane]);
      scores[t].x += part.x;
      scores[t].y += part.y;
    }
  }
  float maxima[S::kTiles];
#pragma unroll
  for (int t = 0; t < S::kTiles; ++t) {
    const int entry = t * kTileRows + 2 * lane;
    scores[t].x = entry < live ? scores[t].x * args.scale : -kInfinity;
    scores[t].y = entry + 1 < live ? scores[t].y * args.scale : -kInfinity;
    maxima[t] = warp_max(fmaxf(scores[t].x, scores[t].y));
  }
  float rescales[S::kTiles], sums[S::kTiles];
#pragma unroll
  for (int t = 0; t < S::kTiles; ++t) {
    const float maximum = fmaxf(running.maximum, maxima[t]);
    rescales[t] = expf(running.maximum - maximum);
    running.maximum = maximum;
    scores[t].x = expf(scores[t].x - maximum);
    scores[t].y = expf(scores[t].y - maximum);
    sums[t] = warp_sum(scores[t].x + scores[t].y);
  }
#pragma unroll
  for (int t = 0; t < S::kTiles; ++t)
    running.denominator = running.denominator * rescales[t] + sums[t];

  const float denominator = running.denominator + expf(sink - running.maximum);
#pragma unroll
  for (int slice = 0; slice < S::kSlices; ++slice) {
    Memory<S>* block = of_block(memory, slice);
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t) {
      if (t * kTileRows >= live) continue;
      *reinterpret_cast<uint32_t*>(&block->weights[head][t * kTileRows + 2 * lane]) =
          static_cast<uint32_t>(bf16_bits(scores[t].x)) |
          static_cast<uint32_t>(bf16_bits(scores[t].y)) << 16;
      if (lane == 0) block->rescales[head][t] = rescales[t];
    }
    if (lane == 0) block->denominators[head] = denominator;
  }
}

// Sixteen heads times a warp's share of the slice; lane l as in multiply_tiles().
template <typename S>
struct Numerators {
  static constexpr int kTiles = S::kSlice / kWarps / 8;  // eights of dimensions of a warp
  float sums[S::kTilesOfHeads][kTiles][4] = {};
};

template <typename S>
__device__ void add_values(int base, int live, const Memory<S>& memory, Numerators<S>& numerators) {
  constexpr int kTiles = Numerators<S>::kTiles;
  static_assert(kTiles == 1 || kTiles == 2);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int dim = static_cast<int>(threadIdx.x) / kWarp * kTiles * 8;
  // With a single eight of dimensions the other two matrices are the next sixteen rows.
  const int value_row = kTiles == 2 ? lane % 16 : lane;
  const int value_dim = kTiles == 2 ? dim + lane / 16 * 8 : dim;
  for (int t = 0; t * kTileRows < live; ++t) {
#pragma unroll
    for (int h = 0; h < S::kTilesOfHeads; ++h) {
      const float upper = memory.rescales[h * 16 + lane / 4][t];
      const float lower = memory.rescales[h * 16 + lane / 4 + 8][t];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        numerators.sums[h][n][0] *= upper;
        numerators.sums[h][n][1] *= upper;
        numerators.sums[h][n][2] *= lower;
        numerators.sums[h][n][3] *= lower;
      }
    }
    uint32_t values[4];
#pragma unroll
    for (int step = 0; step < kTileRows / 16; ++step) {
      const int entry = t * kTileRows + step * 16;
      if (kTiles == 2 || step % 2 == 0)
        load_matrices_transposed(&memory.values[base + entry + value_row][value_dim], values);
#pragma unroll
      for (int h = 0; h < S::kTilesOfHeads; ++h) {
        uint32_t weights[4];
        load_matrices(&memory.weights[h * 16 + lane % 16][entry + lane / 16 * 8], weights);
        if constexpr (kTiles == 2) {
          multiply_tiles(numerators.sums[h][0], weights, values[0], values[1]);
          multiply_tiles(numerators.sums[h][1], weights, values[2], values[3]);
        } else {
          multiply_tiles(numerators.sums[h][0], weights, values[step % 2 * 2],
                         values[step % 2 * 2 + 1]);
        }
      }
    }
  }
}

template <typename S>
__device__ void write_out(const TileArgs& args, int row, int first_head, int slice,
                          const Memory<S>& memory, const Numerators<S>& numerators) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
  for (int h = 0; h < S::kTilesOfHeads; ++h) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = h * 16 + lane / 4 + half * 8;
      if (first_head + head >= args.heads) continue;
      const float denominator = memory.denominators[head];
      Bf16* out = args.out +
                  (static_cast<int64_t>(row) * args.heads + first_head + head) * S::kDim +
                  slice * S::kSlice;
#pragma unroll
      for (int n = 0; n < Numerators<S>::kTiles; ++n) {
        const int dim = (warp * Numerators<S>::kTiles + n) * 8 + lane % 4 * 2;
        const float* pair = &numerators.sums[h][n][half * 2];
        *reinterpret_cast<uint32_t*>(out + dim) =
            static_cast<uint32_t>(bf16_bits(pair[0] / denominator)) |
            static_cast<uint32_t>(bf16_bits(pair[1] / denominator)) << 16;
      }
    }
  }
}

// ---- the kernel -------------------------------------------------------------------------------

template <typename S>
__device__ void wait_for_cluster() {
  if constexpr (S::kSlices == 1) {
    __syncthreads();
  } else {
    cg::this_cluster().sync();
  }
}

// blockIdx.x: step row * kSlices + slice; blockIdx.y: heads.
template <typename S, int kMinBlocks>
__global__ void __launch_bounds__(kThreads, kMinBlocks) tiles_kernel(TileArgs args) {
  extern __shared__ __align__(16) unsigned char bytes[];
  auto& memory = *reinterpret_cast<Memory<S>*>(bytes);
  grid_wait();
  grid_launch();
  const int row = static_cast<int>(blockIdx.x) / S::kSlices;
  const int slice = static_cast<int>(blockIdx.x) % S::kSlices;
  const int first_head = static_cast<int>(blockIdx.y) * S::kHeads;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const QueryList list = list_of(args.list, row);
  load_queries(args, row, first_head, slice, memory);
  // A list without rows leaves zeros over one.
  for (int i = static_cast<int>(threadIdx.x); i < S::kHeads; i += kThreads)
    memory.denominators[i] = 1;
  wait_for_cluster<S>();  // also: every block of the cluster runs before its memory is used

  constexpr int kWarpOwned = (S::kOwned + kWarps - 1) / kWarps;
  Running running[kWarpOwned];
  Numerators<S> numerators;
  for (int begin = 0; begin < list.rows; begin += S::kLoadRows) {
    load_values(args, list, begin, slice, memory);
    for (int base = 0; base < S::kLoadRows && begin + base < list.rows; base += S::kScoreRows) {
      const int live = min(S::kScoreRows, list.rows - begin - base);
      partial_scores(base, live, memory);
      wait_for_cluster<S>();
#pragma unroll
      for (int i = 0; i < kWarpOwned; ++i) {
        const int owned = warp + i * kWarps;
        if (owned >= S::kOwned) continue;
        const int head = slice * S::kOwned + owned;
        const float sink = first_head + head < args.heads ? args.sinks[first_head + head] : 0.0f;
        make_weights(args, head, sink, live, memory, running[i]);
      }
      wait_for_cluster<S>();
      add_values(base, live, memory, numerators);
    }
    __syncthreads();  // all have used the values
  }
  write_out(args, row, first_head, slice, memory, numerators);
}

// A launch of `rows` step rows; its attributes lie in `attributes`.
template <typename S>
cudaLaunchConfig_t launch_config(const Launch& launch, int heads, int rows,
                                 cudaLaunchAttribute (&attributes)[2]) {
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = S::kSlices;
  attributes[0].val.clusterDim.y = 1;
  attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(rows) * S::kSlices,
                        static_cast<unsigned>((heads + S::kHeads - 1) / S::kHeads));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sizeof(Memory<S>);
  config.stream = launch.stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  return config;
}

template <typename S, int kMinBlocks>
void allow_shared_memory() {
  static const cudaError_t allowed =
      cudaFuncSetAttribute(tiles_kernel<S, kMinBlocks>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(sizeof(Memory<S>)));
  check(allowed, "shared memory of attention");
}

template <typename S, int kMinBlocks>
void start_tiles(const Launch& launch, const TileArgs& args, int rows) {
  allow_shared_memory<S, kMinBlocks>();
  cudaLaunchAttribute attributes[2] = {};
  const cudaLaunchConfig_t config = launch_config<S>(launch, args.heads, rows, attributes);
  check(cudaLaunchKernelEx(&config, tiles_kernel<S, kMinBlocks>, args), "sparse_attention");
}

// Starts the kernel if the device can hold all of its clusters at once: a second wave would take
// as long as the first. An H200 holds 30 clusters of four blocks, one on a multiprocessor.
template <typename S>
bool start_in_one_wave(const Launch& launch, const TileArgs& args, int rows) {
  allow_shared_memory<S, 1>();
  static const int held = [&] {
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = launch_config<S>(launch, args.heads, rows, attributes);
    config.numAttrs = 1;
    int clusters = 0;
    check(cudaOccupancyMaxActiveClusters(&clusters, tiles_kernel<S, 1>, &config),
          "clusters of attention");
    return clusters;
  }();
  if (rows * ((args.heads + S::kHeads - 1) / S::kHeads) > held) return false;
  start_tiles<S, 1>(launch, args, rows);
  return true;
}

// Few rows: as few heads a block as one wave allows, since the widening of a list takes most of the
// time and blocks of other heads do it side by side. Many rows: all heads share the widened rows,
// and two blocks of a processor hide each other's waiting.
template <int kDim>
void start_dim(const Launch& launch, const TileArgs& args, int rows) {
  if (start_in_one_wave<Shape<kDim, 1, 10, 5>>(launch, args, rows) ||
      start_in_one_wave<Shape<kDim, 2, 5, 5>>(launch, args, rows) ||
      start_in_one_wave<Shape<kDim, 4, 5, 5>>(launch, args, rows))
    return;
  start_tiles<Shape<kDim, 4, 2, 2>, 2>(launch, args, rows);
}

}  // namespace

bool attend_with_tiles(const Launch& launch, const AttentionArgs& args, const StepRows& step,
                       const KvView& kv) {
  if (launch.numerics != Numerics::kBF16) return false;
  const int dim = launch.config.head_dim;
  const bool aligned = args.window.cols % 16 == 0 && kv.page_bytes % 8 == 0;
  const bool halves = args.window.cols % 2 == 0 && kv.page_bytes % 2 == 0;
  const TileArgs tiles{.list = list_args(args, step, kv),
                       .q = static_cast<const Bf16*>(args.q.data),
                       .out = static_cast<Bf16*>(args.out.data),
                       .sinks = args.sinks,
                       .heads = static_cast<int>(args.q.cols) / dim,
                       .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)))};
  if (dim == 512 && aligned) {
    start_dim<512>(launch, tiles, step.rows);
  } else if (dim == 64 && halves) {
    start_dim<64>(launch, tiles, step.rows);
  } else {
    return false;
  }
  return true;
}

}  // namespace peregrine::cuda
