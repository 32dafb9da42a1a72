// Products of many rows: a block computes 128 weight rows times 128 rows of the step on the tensor
// cores, in the order of summation of mma_product.h.
#pragma once

#include "backend/cuda/linear_kernels.h"
#include "backend/cuda/mma.cuh"
#include "backend/tensor.h"

namespace peregrine::cuda {

inline constexpr int kChunkColumns = 128;
inline constexpr int kChunkThreads = 256;

// The 128 weight rows: of one matrix from `first` on, or, paired, 64 of each of two matrices in
// turns of 16.
template <Product kProduct, bool kPaired>
struct ChunkWeights {
  Weight w[kPaired ? 2 : 1];
  int64_t first = 0;

  __device__ const Weight& matrix(int row) const { return w[kPaired ? row / 16 % 2 : 0]; }
  // The row's number in its matrix.
  __device__ int64_t output(int row) const {
    return first + (kPaired ? row / 32 * 16 + row % 16 : row);
  }
  __device__ const uint8_t* data(int row) const {
    const int64_t o = output(row);
    if (o >= w[0].out) return nullptr;
    return static_cast<const uint8_t*>(matrix(row).data) +
           o * blocks_of(w[0].in) * block_bytes(kProduct);
  }
  __device__ const uint8_t* scale(int row) const {
    const int64_t o = output(row);
    if (o >= w[0].out) return nullptr;
    return matrix(row).scale + (kProduct == Product::kF4Codes ? o : o / 32) * blocks_of(w[0].in);
  }
};

template <Product kProduct, bool kPaired>
class ChunkTile {
 public:
  static constexpr int kStages = 4;
  static constexpr int kStepBlocks = 2;  // a step: 64 inputs
  static constexpr int kRowBytes = kStepBlocks * block_bytes(kProduct);
  static constexpr int kWeightBytes = kChunkOutputs * kRowBytes;
  static constexpr int kInputBytes = kChunkColumns * 128;
  static constexpr bool kInputScales = has_input_scale(kProduct);
  static constexpr int kScaleBytes = kInputScales ? kStepBlocks * kChunkColumns * 4 : 0;
  static constexpr int kStageBytes = kWeightBytes + kInputBytes + kScaleBytes;
  // The stages, then a total of every thread's 64 sums, which the few slices are added to.
  static constexpr int kTotalBytes = kChunkThreads * 64 * 4;
  static constexpr int kSharedBytes = kStages * kStageBytes + kTotalBytes;

  // Warps: four along the outputs (32 each) by two along the columns, which take tiles of eight
  // columns in turns, so that both have work when few columns exist.
  static constexpr int kColumnTiles = 8;
  __device__ static int first_column(int warp, int n) { return (2 * n + warp % 2) * 8; }

  // x_rows [128] in shared memory: the row of prepared inputs that each column reads, -1: none.
  // `columns`: columns from here on are -1.
  __device__ ChunkTile(const ChunkWeights<kProduct, kPaired>& weights, const uint16_t* x,
                       const float* x_scale, int64_t x_in, int64_t x_offset, const int32_t* x_rows,
                       int columns, std::byte* shared)
      : blocks_(static_cast<int>(blocks_of(weights.w[0].in))),
        shared_(shared),
        any_(static_cast<const uint8_t*>(weights.w[0].data)) {
    const int tid = threadIdx.x;
#pragma unroll
    for (int i = 0; i < kWeightCopies; ++i) weight_[i] = weights.data(weight_row(i));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = x_rows[tid / 8 + 32 * i];
      input_[i] = row < 0 ? nullptr : x + row * x_in + x_offset + tid % 8 * 8;
    }
    if constexpr (kInputScales) {
      const int row = x_rows[tid % kChunkColumns];
      input_scale_ = row < 0 ? nullptr : x_scale + row * (x_in / 32);
    }
    const int lane = tid % 32, warp = tid / 32;
    if constexpr (has_scale(kProduct)) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const int row = warp / 2 * 32 + m * 16;
        scale_[m][0] = weights.scale(row + (kProduct == Product::kF4Codes ? lane / 4 : 0));
        if constexpr (kProduct == Product::kF4Codes)
          scale_[m][1] = weights.scale(row + lane / 4 + 8);
      }
    }
    column_tiles_ = ((columns + 7) / 8 + 1 - warp % 2) / 2;
  }

  // Leaves the sums of the warp's tiles to total().
  __device__ void run() {
    float acc[2][kColumnTiles][4];
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      *total_at(i) = 0;
      acc[i / 32][i / 4 % 8][i % 4] = 0;
    }
    const int steps = (blocks_ + 1) / 2;
    constexpr int kChunkSteps = chunk_blocks(kProduct) / kStepBlocks;
    const int64_t chunks = chunks_of(kProduct, static_cast<int64_t>(blocks_) * 32);
    int slice = 0;
    int slice_end = static_cast<int>(slice_begin(chunks, 1)) * kChunkSteps;
    for (int s = 0; s < kStages - 1; ++s) {
      if (s < steps) load(s);
      async_commit();
    }
    uint32_t scales[2][2], next[2][2];
    load_scales(0, scales);
    for (int s = 0; s < steps; ++s) {
      async_wait<kStages - 2>();
      __syncthreads();
      if (s + kStages - 1 < steps) load(s + kStages - 1);
      async_commit();
      if (s + 1 < steps) load_scales(s + 1, next);
      while (s >= slice_end) {
        flush(acc);
        ++slice;
        slice_end = static_cast<int>(slice_begin(chunks, slice + 1)) * kChunkSteps;
      }
      if (column_tiles_ == kColumnTiles) {
        compute<true>(s, scales, acc);
      } else {
        compute<false>(s, scales, acc);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) scales[i / 2][i % 2] = next[i / 2][i % 2];
    }
    flush(acc);
    async_wait<0>();
    __syncthreads();
  }

  // Sum (m, n, i) of the thread: element i of output tile m and column tile n.
  __device__ float total(int m, int n, int i) const { return *total_at(m * 32 + n * 4 + i); }

 private:
  __device__ float* total_at(int i) const {
    return reinterpret_cast<float*>(shared_ + kStages * kStageBytes) + i * kChunkThreads +
           threadIdx.x;
  }

  static constexpr int kUnits = kRowBytes / 16;  // of a weight row in a step
  static constexpr int kWeightCopies = kChunkOutputs * kUnits / kChunkThreads;

  __device__ static int weight_row(int copy) {
    return (static_cast<int>(threadIdx.x) + copy * kChunkThreads) / kUnits;
  }

  // Where unit `u` (16 bytes) of a weight row lies in its stage: rows share lines of 128 bytes so
  // that the loads of weights() meet no bank conflict.
  __device__ static int weight_at(int row, int unit) {
    if constexpr (kUnits == 8) {
      return row * 128 + (unit ^ swizzle(row)) * 16;
    } else if constexpr (kUnits == 4) {
      const int line = row / 2;
      return line * 128 + ((row % 2 * 4 + unit) ^ (line % 2 * 2)) * 16;
    } else {
      const int line = row / 4;
      return line * 128 + ((row % 4 * 2 + unit) ^ (line % 2)) * 16;
    }
  }

  __device__ std::byte* stage(int step) const { return shared_ + step % kStages * kStageBytes; }

  __device__ void load(int step) const {
    const int tid = threadIdx.x;
    const uint32_t base = shared_address(stage(step));
    const uint8_t* nothing = any_;  // some address, of which nothing is read
    const int unit = tid % kUnits;
    // Of the last step only one block may exist.
    const bool unit_exists =
        step * kStepBlocks * block_bytes(kProduct) + unit * 16 < blocks_ * block_bytes(kProduct);
#pragma unroll
    for (int i = 0; i < kWeightCopies; ++i) {
      const bool valid = weight_[i] != nullptr && unit_exists;
      async_copy16(
          base + static_cast<uint32_t>(weight_at(weight_row(i), unit)),
          valid ? weight_[i] + static_cast<int64_t>(step) * kRowBytes + unit * 16 : nothing, valid);
    }
    const bool input_exists = step * 64 + tid % 8 * 8 < blocks_ * 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = tid / 8 + 32 * i;
      const bool valid = input_[i] != nullptr && input_exists;
      async_copy16(
          base + static_cast<uint32_t>(kWeightBytes + row * 128 + (tid % 8 ^ swizzle(row)) * 16),
          valid ? static_cast<const void*>(input_[i] + step * 64) : nothing, valid);
    }
    if constexpr (kInputScales) {
      const int block = tid / kChunkColumns;
      const bool valid = input_scale_ != nullptr && step * 2 + block < blocks_;
      async_copy4(base + static_cast<uint32_t>(kWeightBytes + kInputBytes + tid * 4),
                  valid ? static_cast<const void*>(input_scale_ + step * 2 + block) : nothing,
                  valid);
    }
  }

  // Scale bytes of both blocks of a step, for the warp's two output tiles and the thread's two
  // rows.
  __device__ void load_scales(int step, uint32_t (&bytes)[2][2]) const {
    if constexpr (has_scale(kProduct)) {
      constexpr int kRows = kProduct == Product::kF4Codes ? 2 : 1;
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int h = 0; h < kRows; ++h) {
          const uint8_t* at = scale_[m][h];
          if (at == nullptr) {
            bytes[m][h] = 0;
          } else if (blocks_ % 2 == 0) {
            bytes[m][h] = *reinterpret_cast<const uint16_t*>(at + step * 2);
          } else {
            bytes[m][h] = at[step * 2];
            if (step * 2 + 1 < blocks_) bytes[m][h] |= static_cast<uint32_t>(at[step * 2 + 1]) << 8;
          }
        }
      }
    }
  }

  // kFull: all column tiles. Blocks past the end of a row are zeros in shared memory.
  template <bool kFull>
  __device__ void compute(int step, const uint32_t (&bytes)[2][2],
                          float (&acc)[2][kColumnTiles][4]) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const std::byte* weights = stage(step);
    const std::byte* inputs = weights + kWeightBytes;
    const auto* input_scales = reinterpret_cast<const float*>(inputs + kInputBytes);
#pragma unroll
    for (int b = 0; b < kStepBlocks; ++b) {
      uint32_t a[2][2][4];
      float w[2][2];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          fragment(weights, warp / 2 * 32 + m * 16 + h * 8 + g, b, t, a[m][h]);
          w[m][h] = 1;
          if constexpr (has_scale(kProduct)) {
            w[m][h] = scale_value(bytes[m][kProduct == Product::kF4Codes ? h : 0], b);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        if (!kFull && n >= column_tiles_) break;
        const int column = first_column(warp, n);
        const uint4 in = *reinterpret_cast<const uint4*>(inputs + (column + g) * 128 +
                                                         ((b * 4 + t) ^ swizzle(g)) * 16);
        float2 s = make_float2(1, 1);
        if constexpr (kInputScales)
          s = *reinterpret_cast<const float2*>(input_scales + b * kChunkColumns + column + 2 * t);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          float part[4] = {0, 0, 0, 0};
          block_product<kProduct>(part, a[m][0], a[m][1], in);
          acc[m][n][0] = fmaf(w[m][0] * s.x, part[0], acc[m][n][0]);
          acc[m][n][1] = fmaf(w[m][0] * s.y, part[1], acc[m][n][1]);
          acc[m][n][2] = fmaf(w[m][1] * s.x, part[2], acc[m][n][2]);
          acc[m][n][3] = fmaf(w[m][1] * s.y, part[3], acc[m][n][3]);
        }
      }
    }
  }

  __device__ static void fragment(const std::byte* weights, int row, int b, int t,
                                  uint32_t (&pairs)[4]) {
    constexpr int kWords = thread_words(kProduct);
    const int byte = b * block_bytes(kProduct) + t * kWords * 4;
    uint32_t words[kWords];
    load_shared(weights + weight_at(row, byte / 16) + byte % 16, words);
    widen_eight<kProduct>(words, pairs);
  }

  __device__ void flush(float (&acc)[2][kColumnTiles][4]) const {
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      *total_at(i) += acc[i / 32][i / 4 % 8][i % 4];
      acc[i / 32][i / 4 % 8][i % 4] = 0;
    }
  }

  int blocks_;
  std::byte* shared_;
  const uint8_t* any_;
  const uint8_t* weight_[kWeightCopies];
  const uint16_t* input_[4];
  const float* input_scale_ = nullptr;
  const uint8_t* scale_[2][2] = {};
  int column_tiles_;
};

// Writes a tile [128 columns][kOutputs + 8] of bf16 bits in shared memory as whole lines: column c
// to outputs first .. of rows[c], which is `outputs` long or null.
template <int kOutputs>
__device__ inline void write_tile(const uint16_t* shared, uint16_t* const* rows, int64_t first,
                                  int64_t outputs) {
  constexpr int kPitch = kOutputs + 8;
  for (int i = threadIdx.x; i < kChunkColumns * kOutputs / 8; i += kChunkThreads) {
    const int column = i / (kOutputs / 8), output = i % (kOutputs / 8) * 8;
    uint16_t* row = rows[column];
    if (row == nullptr || first + output >= outputs) continue;
    const uint16_t* from = shared + column * kPitch + output;
    if (outputs % 8 == 0) {
      *reinterpret_cast<uint4*>(row + first + output) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int j = 0; j < 8 && first + output + j < outputs; ++j) row[first + output + j] = from[j];
    }
  }
}

}  // namespace peregrine::cuda
