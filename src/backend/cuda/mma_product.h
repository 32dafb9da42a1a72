// Kinds of matrix products, their shapes and the order of summation, for host and device (spec:
// quantization.md section 7; docs/cuda.md).
//
// A product is D = W . X^T in bf16 on the tensor cores: weights are widened with the scale of their
// block multiplied in, quantised inputs with theirs, both exactly. In every 32 inputs the thread
// with quad number t = lane % 4 holds inputs 8t .. 8t+7, four for each of the two instructions of
// depth 16 that make a block of 32. The order for one output, whatever kernel computes it and
// however many rows there are:
//   slices   the inputs are cut into 1, 2, 4 or 8 runs of whole chunks (a chunk: 128 bytes of a
//            weight row), see Slices
//   slice    blocks of 32 ascending, two instructions each: acc = acc + their 16 products, in f32
//            as the instruction sums; mma.sync and wgmma give the same bits
//   output   (0 + slice 0 + slice 1 + ...) * 2^weight_bias
#pragma once

#include <cstdint>

#include "formats/host_device.h"

namespace peregrine::cuda {

inline constexpr int kMaxSliceBits = 3;
inline constexpr int kMaxSlices = 1 << kMaxSliceBits;
inline constexpr int kChunkBytes = 128;

// Stored weights of a product; inputs are bf16.
enum class Product { kF8, kF4, kBF16 };

// Stored bytes of 32 inputs of one weight row.
PEREGRINE_HD constexpr int block_bytes(Product p) {
  return p == Product::kF4 ? 16 : p == Product::kBF16 ? 64 : 32;
}
// Blocks of 32 inputs in a chunk.
PEREGRINE_HD constexpr int chunk_blocks(Product p) { return kChunkBytes / block_bytes(p); }
PEREGRINE_HD constexpr bool has_scale(Product p) { return p != Product::kBF16; }

// A stored code becomes a bf16 number of value * 2^-120 (F8) or 2^-126 (F4) by moving its bits; one
// multiplication by 2^(scale + kScaleShift) puts it right but for 2^-weight_bias. Scales of
// 2^-63 .. 2^63 stay exact; others are refused when they are loaded (weight_scales.h).
inline constexpr int kScaleShift = 64;
inline constexpr int kMaxScaleExponent = 63;
PEREGRINE_HD constexpr int weight_bias(Product p) {
  return p == Product::kF8 ? 120 - kScaleShift : p == Product::kF4 ? 126 - kScaleShift : 0;
}
// What a sum of products is multiplied by.
PEREGRINE_HD constexpr float output_factor(Product p) {
  return static_cast<float>(int64_t{1} << weight_bias(p));
}

// The order in which widening leaves eight consecutive weights; inputs are stored in it.
PEREGRINE_HD constexpr int input_order(Product p, int i) {
  constexpr int kF8[8] = {0, 2, 1, 3, 4, 6, 5, 7};
  constexpr int kF4[8] = {0, 4, 1, 5, 2, 6, 3, 7};
  return p == Product::kF4 ? kF4[i] : p == Product::kBF16 ? i : kF8[i];
}

PEREGRINE_HD inline int64_t blocks_of(int64_t in) { return in / 32; }
// How a row is cut into slices.
struct Slices {
  int chunks = 0;
  int bits = 0;  // 2^bits slices

  // As many as leave the longest at most a sixteenth above an equal share.
  PEREGRINE_HD Slices(Product p, int64_t in)
      : chunks((static_cast<int>(in / 32) + chunk_blocks(p) - 1) / chunk_blocks(p)) {
    for (bits = kMaxSliceBits; bits > 0; --bits)
      if ((((chunks + (1 << bits) - 1) >> bits) << bits) * 16 <= chunks * 17) break;
  }
  PEREGRINE_HD int count() const { return 1 << bits; }
  // First chunk of slice `s`; of slice count(): the end.
  PEREGRINE_HD int begin(int s) const { return (chunks * s) >> bits; }
};

}  // namespace peregrine::cuda
