// Products of a few rows (1..16): every warp of a block streams its slice of the weight rows of one
// job after another through its own ring in shared memory, so that copies never pause between jobs
// and each byte is read once. A job is kTiles tiles of 16 outputs with equal inputs; the warps of
// a group take its slices.
#pragma once

#include <type_traits>

#include "backend/cuda/mma.cuh"
#include "backend/tensor.h"

namespace peregrine::cuda {

inline constexpr int kTileOutputs = 16;
inline constexpr int kTileBytes = kTileOutputs * kChunkBytes;
// A stage: a tile of one chunk, then its scales (16 rows of up to 8 bytes).
inline constexpr int kStageBytes = kTileBytes + kTileOutputs * 8;
// Chunks of a warp that are on their way, of all tiles of a job together.
inline constexpr int kRingTiles = 4;
inline constexpr int kStreamWarps = kMaxSlices;
inline constexpr int kStreamThreads = kStreamWarps * 32;
inline constexpr int kRingBytes = kStreamWarps * kRingTiles * kStageBytes;

// 16 outputs of a stored matrix.
struct WeightTile {
  const uint8_t* data = nullptr;   // first row
  const uint8_t* scale = nullptr;  // scales of the first row (F8: of its tile row)
  int valid = 0;                   // rows that exist, 1..16
};

template <Product kProduct>
__device__ inline WeightTile weight_tile(const Weight& w, int64_t first_output) {
  const int64_t nb = blocks_of(w.in);
  WeightTile tile;
  tile.data = static_cast<const uint8_t*>(w.data) + first_output * nb * block_bytes(kProduct);
  if constexpr (has_scale(kProduct)) {
    tile.scale = w.scale + (kProduct == Product::kF4 ? first_output : first_output / 32) * nb;
  }
  tile.valid =
      static_cast<int>(w.out - first_output < kTileOutputs ? w.out - first_output : kTileOutputs);
  return tile;
}

// The calling thread's place: blocks are cut into groups of as many warps as a row has slices, and
// the groups of a grid take jobs in turns.
struct StreamGroup {
  Slices slices;
  int slice;        // the warp's
  int first_warp;   // of the group in the block
  int first, step;  // its jobs: first, first + step, ...

  __device__ StreamGroup(Product product, int64_t in, int block) : slices(product, in) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    slice = warp & (slices.count() - 1);
    first_warp = warp - slice;
    first = (first_warp >> slices.bits) * static_cast<int>(gridDim.x) + block;
    step = (kStreamWarps >> slices.bits) * static_cast<int>(gridDim.x);
  }
  __device__ int threads() const { return slices.count() * 32; }
  __device__ int thread() const { return static_cast<int>(threadIdx.x) - first_warp * 32; }
  // A barrier of the group.
  __device__ void sync() const {
    if (slices.bits == 0) {
      __syncwarp();
    } else {
      asm volatile("bar.sync %0, %1;" ::"r"(1 + (first_warp >> slices.bits)), "r"(threads())
                   : "memory");
    }
  }
};

// The inputs of one thread: row g of each column tile from its quad's place on. Columns without a
// row read some other row; nobody reads their sums. Block b of a row lies b * kStride elements
// further on.
template <int kColumns>
struct StreamInputs {
  const uint16_t* x[kColumns];
};

// One warp's slice of its group's jobs below `jobs`. Tiles gives the weight tiles of a job:
// void operator()(int job, WeightTile (&tiles)[kTiles]).
template <Product kProduct, int kTiles, int kColumns, int kStride, typename Tiles>
class WeightStream {
 public:
  static constexpr int kStages = kRingTiles / kTiles;

  // `ring`: the block's shared memory, kRingBytes. Starts the first copies.
  __device__ WeightStream(const Tiles& tiles_of, int64_t in, const StreamGroup& group, int jobs,
                          std::byte* ring)
      : tiles_of_(tiles_of),
        ring_(ring + threadIdx.x / 32 * kRingTiles * kStageBytes),
        blocks_(static_cast<int>(blocks_of(in))),
        job_(group.first),
        step_(group.step),
        jobs_(jobs) {
    begin_ = group.slices.begin(group.slice);
    end_ = group.slices.begin(group.slice + 1);
    chunk_ = begin_;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    row_bytes_ = blocks_ * block_bytes(kProduct);
    lane_offset_ = lane / 8 * row_bytes_ + lane % 8 * 16;
    if (job_ < jobs_) tiles_of_(job_, tiles_);
    for (int i = 0; i < kStages; ++i) copy(i);
  }

  // The warp's slice of the next job: acc = its sums.
  __device__ void run(const StreamInputs<kColumns>& inputs, float (&acc)[kTiles][kColumns][4]) {
#pragma unroll
    for (int i = 0; i < kTiles * kColumns * 4; ++i)
      acc[i / (kColumns * 4)][i / 4 % kColumns][i % 4] = 0;
    for (int chunk = begin_; chunk < end_; ++chunk) {
      Group group;
      load(chunk * kBlocks, inputs, group);
      async_wait<kStages - 1>();
      __syncwarp();
#pragma unroll
      for (int b = 0; b < kBlocks; b += kGroupBlocks) {
        multiply(b, group, acc);
        if (b + kGroupBlocks < kBlocks) load(chunk * kBlocks + b + kGroupBlocks, inputs, group);
      }
      __syncwarp();
      copy(next_);
      next_ = next_ + 1 == kStages ? 0 : next_ + 1;
    }
  }

 private:
  static constexpr int kBlocks = chunk_blocks(kProduct);
  // Inputs are loaded for a few blocks at once, ahead of the weights they meet.
  static constexpr int kGroupBlocks = kBlocks < 4 || kColumns > 1 ? 2 : 4;
  struct Group {
    uint4 x[kGroupBlocks][kColumns];
  };

  __device__ void load(int first, const StreamInputs<kColumns>& inputs, Group& group) const {
    if (first + kGroupBlocks <= blocks_) {
      load_blocks<false>(first, inputs, group);
    } else {
      load_blocks<true>(first, inputs, group);
    }
  }

  // kEnd: blocks past the end of a row count as zeros.
  template <bool kEnd>
  __device__ void load_blocks(int first, const StreamInputs<kColumns>& inputs, Group& group) const {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const uint16_t* x = inputs.x[c] + first * kStride;
#pragma unroll
      for (int b = 0; b < kGroupBlocks; ++b) {
        const bool exists = !kEnd || first + b < blocks_;
        group.x[b][c] =
            exists ? *reinterpret_cast<const uint4*>(x + b * kStride) : make_uint4(0, 0, 0, 0);
      }
    }
  }

  __device__ std::byte* stage(int i, int tile) const {
    return ring_ + (i * kTiles + tile) * kStageBytes;
  }

  // Queues the next chunk; always commits a group, so that groups count chunks.
  __device__ void copy(int to) {
    if (job_ < jobs_) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) copy_tile(tiles_[tile], stage(to, tile));
      if (++chunk_ == end_) {
        chunk_ = begin_;
        job_ += step_;
        if (job_ < jobs_) tiles_of_(job_, tiles_);
      }
    }
    async_commit();
  }

  __device__ void copy_tile(const WeightTile& tile, std::byte* stage) const {
    const int lane = threadIdx.x % 32, unit = lane % 8;
    const uint32_t to = shared_address(stage);
    const uint8_t* from = tile.data + lane_offset_ + chunk_ * kChunkBytes;
    const bool whole = tile.valid == kTileOutputs && (chunk_ + 1) * kChunkBytes <= row_bytes_;
    if (whole) {
#pragma unroll
      for (int i = 0; i < kTileOutputs / 4; ++i)
        async_copy16(to + shared_row(i, lane, unit), from + i * 4 * row_bytes_, true);
    } else {
      const bool inside = chunk_ * kChunkBytes + unit * 16 < row_bytes_;
#pragma unroll
      for (int i = 0; i < kTileOutputs / 4; ++i) {
        const bool valid = i * 4 + lane / 8 < tile.valid && inside;
        async_copy16(to + shared_row(i, lane, unit), valid ? from + i * 4 * row_bytes_ : tile.data,
                     valid);
      }
    }
    if constexpr (has_scale(kProduct)) copy_scales(tile, stage + kTileBytes);
  }

  // Where lane `lane` puts the unit of its row in the i-th group of four rows.
  __device__ static uint32_t shared_row(int i, int lane, int unit) {
    const int row = i * 4 + lane / 8;
    return static_cast<uint32_t>(row * kChunkBytes + (unit ^ swizzle(row)) * 16);
  }

  __device__ void copy_scales(const WeightTile& tile, std::byte* at) const {
    constexpr int kRows = kProduct == Product::kF4 ? kTileOutputs : 1;
    const int lane = threadIdx.x % 32;
    const int first = chunk_ * kBlocks;
    if (blocks_ % kBlocks == 0) {
      if (lane < kRows) {
        const bool valid = lane < tile.valid;
        const uint8_t* from = tile.scale + (valid ? lane * blocks_ + first : 0);
        if constexpr (kBlocks == 8) {
          async_copy8(shared_address(at + lane * 8), from, valid);
        } else {
          async_copy4(shared_address(at + lane * 8), from, valid);
        }
      }
    } else {
      // Odd shapes: byte by byte, in place of the background copy.
      for (int i = lane; i < kRows * kBlocks; i += 32) {
        const int row = i / kBlocks, block = i % kBlocks;
        const bool valid = row < tile.valid && first + block < blocks_;
        at[row * 8 + block] =
            static_cast<std::byte>(valid ? tile.scale[row * blocks_ + first + block] : 0);
      }
    }
  }

  // acc += blocks first .. first + kGroupBlocks - 1 of the chunk in stage next_.
  __device__ void multiply(int first, const Group& group, float (&acc)[kTiles][kColumns][4]) const {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const std::byte* base = stage(next_, tile);
      // Scale bytes of the group: rows lie eight bytes apart.
      uint32_t scales[2] = {};
      if constexpr (has_scale(kProduct)) {
        using Bytes = std::conditional_t<kGroupBlocks == 4, uint32_t, uint16_t>;
        const std::byte* at = base + kTileBytes + first;
        const int row = kProduct == Product::kF4 ? g : 0;
        scales[0] = *reinterpret_cast<const Bytes*>(at + row * 8);
        if constexpr (kProduct == Product::kF4)
          scales[1] = *reinterpret_cast<const Bytes*>(at + (row + 8) * 8);
      }
#pragma unroll
      for (int b = 0; b < kGroupBlocks; ++b) {
        uint32_t f0 = 0, f1 = 0;
        if constexpr (has_scale(kProduct)) {
          f0 = f1 = block_factor(scales[0], b);
          if constexpr (kProduct == Product::kF4) f1 = block_factor(scales[1], b);
        }
        uint32_t a0[4], a1[4];
        fragment(base, g, first + b, t, f0, a0);
        fragment(base, g + 8, first + b, t, f1, a1);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) block_product(acc[tile][c], a0, a1, group.x[b][c]);
      }
    }
  }

  // The thread's eight weights of a row in block b of the chunk.
  __device__ static void fragment(const std::byte* base, int row, int b, int t, uint32_t factor,
                                  uint32_t (&pairs)[4]) {
    constexpr int kWords = thread_words(kProduct);
    const int byte = b * block_bytes(kProduct) + t * kWords * 4;
    uint32_t words[kWords];
    load_shared(base + row * kChunkBytes + ((byte / 16) ^ swizzle(row)) * 16 + byte % 16, words);
    widen_eight<kProduct>(words, factor, pairs);
  }

  Tiles tiles_of_;
  WeightTile tiles_[kTiles];  // of the job being copied
  std::byte* ring_;
  int blocks_;
  int row_bytes_;
  int lane_offset_;        // of the lane's first 16 bytes in a tile
  int job_, step_, jobs_;  // being copied
  int begin_, end_;        // chunks of the slice
  int chunk_;              // to be copied next
  int next_ = 0;           // stage to be read next
};

// Sums of the slices in ascending order. partial: [16 outputs][columns], shared.
template <int kColumns>
__device__ inline void put_partial(float* partial, const float (&acc)[kColumns][4]) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      partial[(g + i / 2 * 8) * (kColumns * 8) + c * 8 + 2 * t + i % 2] = acc[c][i];
  }
}
// The output; `partial`: of slice 0; slices lie `stride` floats apart.
template <Product kProduct>
__device__ inline float sum_slices(const float* partial, int stride, int slices) {
  float sum = 0;
  for (int s = 0; s < slices; ++s) sum += partial[s * stride];
  return sum * output_factor(kProduct);
}

}  // namespace peregrine::cuda
