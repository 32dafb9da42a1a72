// Products of many rows: a block computes 128 weight rows times up to 128 rows of the step on the
// tensor cores, in the order of summation of mma_product.h. Weights go from shared memory through
// registers, where they are widened once a block; inputs are read from shared memory by wgmma.
#pragma once

#include <type_traits>

#include "backend/cuda/linear_kernels.h"
#include "backend/cuda/mma.cuh"
#include "backend/cuda/wgmma.cuh"
#include "backend/tensor.h"

namespace peregrine::cuda {

inline constexpr int kChunkColumns = 128;
inline constexpr int kChunkThreads = 256;

// Calls f with the columns that the products of a tile cover, at least `columns` of 1..128, as an
// integral constant: narrow tiles take less time.
template <typename F>
__device__ inline void with_columns(int columns, F f) {
  if (columns <= 32) {
    f(std::integral_constant<int, 32>());
  } else if (columns <= 64) {
    f(std::integral_constant<int, 64>());
  } else if (columns <= 96) {
    f(std::integral_constant<int, 96>());
  } else {
    f(std::integral_constant<int, 128>());
  }
}

// The 128 weight rows: of one matrix from `first` on, or, paired, 64 of each of two matrices in
// turns of 8, so that a thread has both sums of an output.
template <Product kProduct, bool kPaired>
struct ChunkWeights {
  Weight w[kPaired ? 2 : 1];
  int64_t first = 0;

  __device__ const Weight& matrix(int row) const { return w[kPaired ? row / 8 % 2 : 0]; }
  // The row's number in its matrix.
  __device__ int64_t output(int row) const {
    return first + (kPaired ? row / 16 * 8 + row % 8 : row);
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
    return matrix(row).scale + (kProduct == Product::kF4 ? o : o / 32) * blocks_of(w[0].in);
  }
};

template <Product kProduct, bool kPaired>
class ChunkTile {
 public:
  static constexpr int kStages = kProduct == Product::kBF16 ? 5 : 6;
  static constexpr int kAhead = kStages - 2;  // steps on their way while one is computed
  static constexpr int kStepBlocks = 2;       // a step: 64 inputs
  static constexpr int kRowBytes = kStepBlocks * block_bytes(kProduct);
  static constexpr int kInputBytes = kChunkColumns * 128;
  static constexpr int kWeightBytes = kChunkOutputs * kRowBytes;
  static constexpr int kStageBytes = kInputBytes + kWeightBytes;
  static constexpr int kAlignment = 1024;  // of the stages
  static constexpr int kSharedBytes = kStages * kStageBytes + kAlignment;

  // x_rows [128] in shared memory: the row of prepared inputs that each column reads, -1: none.
  // Nothing is loaded for columns without a row and weight rows past the end: their sums are
  // arbitrary.
  __device__ ChunkTile(const ChunkWeights<kProduct, kPaired>& weights, const Prepared& x,
                       int64_t x_offset, const int32_t* x_rows, std::byte* shared)
      : blocks_(static_cast<int>(blocks_of(weights.w[0].in))),
        shared_((shared_address(shared) + kAlignment - 1) / kAlignment * kAlignment) {
    const int tid = threadIdx.x;
#pragma unroll
    for (int i = 0; i < kWeightCopies; ++i) {
      weight_[i] = weights.data((tid + i * kChunkThreads) / kUnits);
      if (weight_[i] != nullptr) weight_[i] += tid % kUnits * 16;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = x_rows[tid / 8 + 32 * i];
      input_[i] = row < 0 ? nullptr : x.row(row) + x_offset + tid % 8 * 8;
    }
    if constexpr (has_scale(kProduct)) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        scale_[h] = weights.scale(first_row() + h * 8);
        if (scale_[h] == nullptr) scale_[h] = weights.w[0].scale;
      }
    }
    input_to_ = static_cast<uint32_t>(tid / 8 * 128 + (tid % 8 ^ tid / 8 % 8) * 16);
    weight_to_ = static_cast<uint32_t>(kInputBytes + weight_at(tid / kUnits, tid % kUnits));
    const int byte = tid % 4 * kWords * 4;
    fragment_ = static_cast<uint32_t>(kInputBytes + weight_at(first_row(), byte / 16) + byte % 16);
  }

  // The thread's two weight rows in the tile are this one and the eighth after it.
  __device__ static int first_row() { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; }
  // The column of sum 4 n + i.
  __device__ static int column(int n, int i) { return n * 8 + threadIdx.x % 4 * 2 + i % 2; }

  // total[4 n + i]: outputs of the rows first_row() (i = 0, 1) and first_row() + 8 (i = 2, 3).
  // Afterwards the shared memory is free.
  template <int kN>
  __device__ void run(float (&total)[kN / 2]) const {
    float acc[kN / 2];
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) total[i] = 0;
    const int steps = (blocks_ + 1) / 2;
    const Slices slices(kProduct, static_cast<int64_t>(blocks_) * 32);
    Place at{shared_, shared_};
    for (int s = 0; s < kAhead; ++s) {
      if (s < steps) load<kN>(s, at.to);
      async_commit();
      at.to = next_stage(at.to);
    }
    uint32_t even[kStepBlocks][8] = {}, odd[kStepBlocks][8] = {};
    Scales scales, next;
    load_scales(0, next);
    int s = 0;
    for (int slice = 0; slice < slices.count(); ++slice) {
      const int end = min(steps, slices.begin(slice + 1) * kChunkSteps);
      for (bool add = false; s < end; s += 2) {
        compute<kN>(s, steps, add, at, scales, next, acc, even, odd);
        add = true;
        if (s + 1 == end) {
          ++s;
          break;
        }
        compute<kN>(s + 1, steps, true, at, scales, next, acc, odd, even);
      }
      wgmma_wait<0>();
      hold(acc);
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) total[i] += acc[i];
    }
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) total[i] *= output_factor(kProduct);
    async_wait<0>();
    __syncthreads();
  }

 private:
  static constexpr int kChunkSteps = chunk_blocks(kProduct) / kStepBlocks;
  // Scale bytes of a chunk for the thread's two weight rows; those of the next step come first.
  struct Scales {
    uint64_t row[2];
  };

  // Stages that are read and filled next.
  struct Place {
    uint32_t from, to;
  };

  // acc += step `s`, with the weights in `mine`, while the step before may still read `other`.
  template <int kN>
  __device__ void compute(int s, int steps, bool add, Place& place, Scales& scales, Scales& next,
                          float (&acc)[kN / 2], uint32_t (&mine)[kStepBlocks][8],
                          uint32_t (&other)[kStepBlocks][8]) const {
    async_wait<kAhead - 1>();
    fence_shared_for_wgmma();
    __syncthreads();  // everybody's copies of this step are there, its products of s - 2 done
    uint32_t words[kStepBlocks][2][kWords];
#pragma unroll
    for (int i = 0; i < 2 * kStepBlocks; ++i)
      load_words(place.from + (fragment_ ^ (i / 2 * block_bytes(kProduct))) + i % 2 * 8 * kRowBytes,
                 words[i / 2][i % 2]);
    if (s + kAhead < steps) load<kN>(s + kAhead, place.to);
    async_commit();
    place.to = next_stage(place.to);
    if (s % kChunkSteps == 0) {
      scales = next;
      load_scales(s / kChunkSteps + 1, next);
    }
#pragma unroll
    for (int b = 0; b < kStepBlocks; ++b) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t factor = 0, pairs[4];
        if constexpr (has_scale(kProduct))
          factor = block_factor(static_cast<uint32_t>(scales.row[h]), b);
        widen_eight<kProduct>(words[b][h], factor, pairs);
#pragma unroll
        for (int i = 0; i < 4; ++i) mine[b][i * 2 + h] = pairs[i];
      }
    }
    if constexpr (has_scale(kProduct)) {
#pragma unroll
      for (int h = 0; h < 2; ++h) scales.row[h] >>= 8 * kStepBlocks;
    }
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 2 * kStepBlocks; ++i) {
      const uint32_t* at = mine[i / 2] + i % 2 * 4;
      const uint32_t a[4] = {at[0], at[1], at[2], at[3]};
      wgmma<kN>(acc, a, place.from + static_cast<uint32_t>(i) * 32, add || i > 0);
    }
    wgmma_commit();
    wgmma_wait<1>();
    hold(other[0]);
    hold(other[1]);
    place.from = next_stage(place.from);
  }

  static constexpr int kWords = thread_words(kProduct);
  static constexpr int kUnits = kRowBytes / 16;  // of a weight row in a step
  static constexpr int kWeightCopies = kChunkOutputs * kUnits / kChunkThreads;

  // Where unit `u` (16 bytes) of a weight row lies in its stage: rows share lines of 128 bytes so
  // that the loads of fragments meet no bank conflict. Eight rows further on everything repeats,
  // and the other block of a step lies where one bit differs.
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

  __device__ uint32_t next_stage(uint32_t stage) const {
    stage += kStageBytes;
    return stage == shared_ + kStages * kStageBytes ? shared_ : stage;
  }

  __device__ static void load_words(uint32_t at, uint32_t (&words)[kWords]) {
    if constexpr (kWords == 1) {
      asm volatile("ld.shared.b32 %0, [%1];" : "=r"(words[0]) : "r"(at) : "memory");
    } else if constexpr (kWords == 2) {
      asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                   : "=r"(words[0]), "=r"(words[1])
                   : "r"(at)
                   : "memory");
    } else {
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                   : "r"(at)
                   : "memory");
    }
  }

  template <int kN>
  __device__ void load(int step, uint32_t stage) const {
    if (step * kStepBlocks + kStepBlocks <= blocks_) {
#pragma unroll
      for (int i = 0; i < kN / 32; ++i)
        if (input_[i] != nullptr)
          async_copy16(stage + input_to_ + i * 4096, input_[i] + step * 64, true);
#pragma unroll
      for (int i = 0; i < kWeightCopies; ++i)
        if (weight_[i] != nullptr)
          async_copy16(stage + weight_to_ + i * 4096, weight_[i] + step * kRowBytes, true);
      return;
    }
    // The last block of an odd number: zeros in place of the other.
    const int tid = threadIdx.x;
#pragma unroll
    for (int i = 0; i < kN / 32; ++i)
      if (input_[i] != nullptr)
        async_copy16(stage + input_to_ + i * 4096,
                     input_[i] - tid % 8 * 8 + step * 64 + tid % 4 * 8, tid % 8 < 4);
#pragma unroll
    for (int i = 0; i < kWeightCopies; ++i) {
      const int unit = tid % kUnits;
      if (weight_[i] != nullptr)
        async_copy16(stage + weight_to_ + i * 4096,
                     weight_[i] + step * kRowBytes - unit / (kUnits / 2) * (kRowBytes / 2),
                     unit < kUnits / 2);
    }
  }

  // Blocks past the end of a row get any scale.
  __device__ void load_scales(int chunk, Scales& scales) const {
    if constexpr (has_scale(kProduct)) {
      constexpr int kBlocks = chunk_blocks(kProduct);
      if (chunk * kBlocks >= blocks_) return;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint8_t* at = scale_[h] + chunk * kBlocks;
        if (blocks_ % kBlocks == 0) {
          using Bytes = std::conditional_t<kBlocks == 8, uint2, uint32_t>;
          const Bytes bytes = __ldg(reinterpret_cast<const Bytes*>(at));
          if constexpr (kBlocks == 8) {
            scales.row[h] = bytes.x | static_cast<uint64_t>(bytes.y) << 32;
          } else {
            scales.row[h] = bytes;
          }
        } else {
          scales.row[h] = 0;
          for (int i = 0; i < kBlocks && chunk * kBlocks + i < blocks_; ++i)
            scales.row[h] |= static_cast<uint64_t>(__ldg(at + i)) << (8 * i);
        }
      }
    }
  }

  int blocks_;
  uint32_t shared_;  // first stage
  const uint8_t* weight_[kWeightCopies];
  const uint16_t* input_[4];
  const uint8_t* scale_[2] = {};
  uint32_t input_to_, weight_to_;  // of the thread's copies in a stage
  uint32_t fragment_;              // of its weights: row first_row(), block 0
};

// Writes a tile [columns][kOutputs + 8] of bf16 bits in shared memory as whole lines: column c to
// outputs first .. of rows[c], which is `outputs` long or null.
template <int kOutputs>
__device__ inline void write_tile(const uint16_t* shared, int columns, uint16_t* const* rows,
                                  int64_t first, int64_t outputs) {
  constexpr int kPitch = kOutputs + 8;
  for (int i = threadIdx.x; i < columns * kOutputs / 8; i += kChunkThreads) {
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
