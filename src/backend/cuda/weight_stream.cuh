// Products of a few rows (1..16): one warp streams its slice of the weight rows of one or two tiles
// of 16 outputs through shared memory, each byte read once, and keeps the sums in registers. The
// copies of a whole slice are in flight at once where the stages allow it.
#pragma once

#include "backend/cuda/mma.cuh"
#include "backend/tensor.h"

namespace peregrine::cuda {

inline constexpr int kTileOutputs = 16;
inline constexpr int kTileBytes = kTileOutputs * kChunkBytes;
// A stage: a tile of one chunk, then its scales (16 rows of up to 8 bytes).
inline constexpr int kStageBytes = kTileBytes + kTileOutputs * 8;
inline constexpr int kMaxStages = 6;

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
    tile.scale = w.scale + (kProduct == Product::kF4Codes ? first_output : first_output / 32) * nb;
  }
  tile.valid =
      static_cast<int>(w.out - first_output < kTileOutputs ? w.out - first_output : kTileOutputs);
  return tile;
}

// One warp's slice of kTiles tiles with equal inputs, for up to 8 * kColumns rows.
template <Product kProduct, int kTiles, int kColumns>
class WeightStream {
 public:
  // `stages`: the warp's own shared memory, `n_stages` * kStageBytes.
  __device__ WeightStream(const WeightTile (&tiles)[kTiles], int64_t in, int slice,
                          std::byte* stages, int n_stages)
      : stages_(stages), n_stages_(n_stages), blocks_(blocks_of(in)) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) tiles_[tile] = tiles[tile];
    const int64_t chunks = chunks_of(kProduct, in);
    chunk_ = static_cast<int>(slice_begin(chunks, slice));
    items_ = static_cast<int>(slice_begin(chunks, slice + 1) - chunk_) * kTiles;
    for (int i = 0; i < n_stages_; i += kTiles) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) copy(i + tile, tiles_[tile]);
    }
  }

  // acc[tile][column tile][4] += nothing but this slice; they start from zero here. `x`: the
  // thread's row g of each column tile at input 0 (null: no such row); `x_scale`: scales of rows
  // 2t and 2t + 1.
  __device__ void run(const uint16_t* const (&x)[kColumns],
                      const float* const (&x_scale)[kColumns][2],
                      float (&acc)[kTiles][kColumns][4]) {
#pragma unroll
    for (int i = 0; i < kTiles * kColumns * 4; ++i)
      acc[i / (kColumns * 4)][i / 4 % kColumns][i % 4] = 0;
    for (int item = 0; item < items_; item += kTiles) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        wait_for_oldest();
        __syncwarp();
        multiply(item + tile, x, x_scale, acc[tile]);
        __syncwarp();
        copy(item + tile + n_stages_, tiles_[tile]);
      }
    }
  }

 private:
  __device__ std::byte* stage(int item) const {
    return stages_ + static_cast<size_t>(item % n_stages_) * kStageBytes;
  }

  // Queues the copy of an item, of the tile item % kTiles; always commits a group, so that groups
  // count items.
  __device__ void copy(int item, const WeightTile& tile) {
    if (item < items_) {
      const int chunk = chunk_ + item / kTiles;
      const int lane = threadIdx.x % 32;
      const int64_t row_bytes = blocks_ * block_bytes(kProduct);
      const int unit = lane % 8;
      const int64_t byte = static_cast<int64_t>(chunk) * kChunkBytes + unit * 16;
      const uint32_t to = shared_address(stage(item));
#pragma unroll
      for (int i = 0; i < kTileOutputs / 4; ++i) {
        const int row = i * 4 + lane / 8;
        const bool valid = row < tile.valid && byte < row_bytes;
        async_copy16(to + static_cast<uint32_t>(row * kChunkBytes + (unit ^ swizzle(row)) * 16),
                     tile.data + (valid ? row * row_bytes + byte : 0), valid);
      }
      if constexpr (has_scale(kProduct)) copy_scales(tile, chunk, item);
    }
    async_commit();
  }

  __device__ void copy_scales(const WeightTile& tile, int chunk, int item) {
    constexpr int kBlocks = chunk_blocks(kProduct);
    constexpr int kRows = kProduct == Product::kF4Codes ? kTileOutputs : 1;
    std::byte* at = stage(item) + kTileBytes;
    const int lane = threadIdx.x % 32;
    const int64_t first = static_cast<int64_t>(chunk) * kBlocks;
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

  // n_stages_ groups are pending, or fewer near nothing: the oldest must be complete.
  __device__ void wait_for_oldest() const {
    switch (n_stages_) {
      case 1:
        return async_wait<0>();
      case 2:
        return async_wait<1>();
      case 3:
        return async_wait<2>();
      case 4:
        return async_wait<3>();
      case 5:
        return async_wait<4>();
      default:
        return async_wait<5>();
    }
  }

  __device__ void multiply(int item, const uint16_t* const (&x)[kColumns],
                           const float* const (&x_scale)[kColumns][2],
                           float (&acc)[kColumns][4]) const {
    constexpr int kBlocks = chunk_blocks(kProduct);
    const std::byte* base = stage(item);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int first = (chunk_ + item / kTiles) * kBlocks;
    uint2 scales[2] = {};
    if constexpr (has_scale(kProduct)) {
      const auto* rows = reinterpret_cast<const uint2*>(base + kTileBytes);
      scales[0] = rows[kProduct == Product::kF4Codes ? g : 0];
      if constexpr (kProduct == Product::kF4Codes) scales[1] = rows[g + 8];
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int block = first + b;
      if (block >= blocks_) break;
      uint32_t a0[4], a1[4];
      fragment(base, g, b, t, a0);
      fragment(base, g + 8, b, t, a1);
      float w0 = 1, w1 = 1;
      if constexpr (has_scale(kProduct)) {
        w0 = scale_value((b < 4 ? scales[0].x >> (8 * b) : scales[0].y >> (8 * (b - 4))) & 0xFFu);
        w1 = w0;
        if constexpr (kProduct == Product::kF4Codes)
          w1 = scale_value((b < 4 ? scales[1].x >> (8 * b) : scales[1].y >> (8 * (b - 4))) & 0xFFu);
      }
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        uint4 in = make_uint4(0, 0, 0, 0);
        if (x[c] != nullptr)
          in = *reinterpret_cast<const uint4*>(x[c] + static_cast<int64_t>(block) * 32 + t * 8);
        if constexpr (kProduct == Product::kBF16) {
          block_product<kProduct>(acc[c], a0, a1, in);
        } else {
          float part[4] = {0, 0, 0, 0};
          block_product<kProduct>(part, a0, a1, in);
          float s0 = 1, s1 = 1;
          if constexpr (kProduct != Product::kF8Plain) {
            s0 = x_scale[c][0][block];
            s1 = x_scale[c][1][block];
          }
          acc[c][0] = fmaf(w0 * s0, part[0], acc[c][0]);
          acc[c][1] = fmaf(w0 * s1, part[1], acc[c][1]);
          acc[c][2] = fmaf(w1 * s0, part[2], acc[c][2]);
          acc[c][3] = fmaf(w1 * s1, part[3], acc[c][3]);
        }
      }
    }
  }

  // The thread's eight weights of a row in block b of the chunk.
  __device__ static void fragment(const std::byte* base, int row, int b, int t,
                                  uint32_t (&pairs)[4]) {
    constexpr int kWords = thread_words(kProduct);
    const int byte = b * block_bytes(kProduct) + t * kWords * 4;
    uint32_t words[kWords];
    load_shared(base + row * kChunkBytes + ((byte / 16) ^ swizzle(row)) * 16 + byte % 16, words);
    widen_eight<kProduct>(words, pairs);
  }

  WeightTile tiles_[kTiles];
  std::byte* stages_;
  int n_stages_;
  int64_t blocks_;
  int chunk_ = 0;
  int items_ = 0;
};

// Stages that hold a slice of `tiles` tiles, at most kMaxStages; a multiple of `tiles`, which divides
// kMaxStages.
PEREGRINE_HD inline int stream_stages(Product product, int64_t in, int tiles) {
  const int64_t chunks = (chunks_of(product, in) + kSlices - 1) / kSlices;
  const int64_t items = chunks * tiles;
  return static_cast<int>(items < kMaxStages ? items : kMaxStages);
}

// Sums of the slices in ascending order. partial: [slice][tile][16 outputs][columns], shared.
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
// `partial`: of slice 0; slices lie `stride` floats apart.
__device__ inline float sum_slices(const float* partial, int stride) {
  float sum = 0;
#pragma unroll
  for (int s = 0; s < kSlices; ++s) sum += partial[s * stride];
  return sum;
}

}  // namespace peregrine::cuda
