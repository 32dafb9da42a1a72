// Kinds of matrix products, their shapes and the order of summation, for host and device (spec:
// quantization.md section 7; docs/cuda.md).
//
// A product is D = W . X^T: 16 outputs are the rows of an m16n8k16 instruction, 8 rows of the step
// its columns. In every 32 inputs the thread with quad number t = lane % 4 holds inputs 8t .. 8t+7,
// four for each of the two instructions that make a block of 32. The order for one output, whatever
// kernel computes it and however many rows there are:
//   slices   the inputs are cut into kSlices runs of whole chunks (a chunk: 128 bytes of a weight
//            row); slice s begins at chunk chunks * s / kSlices
//   slice    blocks of 32 ascending: acc = fma(scale, block, acc), where `block` is the sum of the
//            block's products as two instructions from zero, and the scale is 1 without scales
//   output   0 + slice 0 + slice 1 + ...
#pragma once

#include <cstdint>

#include "formats/host_device.h"

namespace peregrine::cuda {

inline constexpr int kSlices = 8;
inline constexpr int kChunkBytes = 128;

// Weights and inputs of a product.
enum class Product {
  kF8Codes,  // F8 weights, inputs quantised to e4m3, held as f16
  kF4Codes,  // F4 weights, likewise
  kF8Plain,  // F8 weights, bf16 inputs
  kBF16,     // BF16 weights, bf16 inputs
};

// Stored bytes of 32 inputs of one weight row.
PEREGRINE_HD constexpr int block_bytes(Product p) {
  return p == Product::kF4Codes ? 16 : p == Product::kBF16 ? 64 : 32;
}
// Blocks of 32 inputs in a chunk.
PEREGRINE_HD constexpr int chunk_blocks(Product p) { return kChunkBytes / block_bytes(p); }
PEREGRINE_HD constexpr bool has_scale(Product p) { return p != Product::kBF16; }
PEREGRINE_HD constexpr bool has_input_scale(Product p) {
  return p == Product::kF8Codes || p == Product::kF4Codes;
}
// Codes widen to their value times 2^-bias; the factor goes into the scale of the inputs (kF8Plain:
// is undone while widening).
PEREGRINE_HD constexpr int code_bias(Product p) {
  return p == Product::kF8Codes ? 8 : p == Product::kF4Codes ? 14 : 0;
}

// The order in which widening leaves eight consecutive weights; inputs are stored in it.
PEREGRINE_HD constexpr int input_order(Product p, int i) {
  constexpr int kF8[8] = {0, 2, 1, 3, 4, 6, 5, 7};
  constexpr int kF4[8] = {0, 4, 2, 6, 1, 5, 3, 7};
  return p == Product::kF4Codes ? kF4[i] : p == Product::kBF16 ? i : kF8[i];
}

PEREGRINE_HD inline int64_t blocks_of(int64_t in) { return in / 32; }
PEREGRINE_HD inline int64_t chunks_of(Product p, int64_t in) {
  return (in / 32 + chunk_blocks(p) - 1) / chunk_blocks(p);
}
PEREGRINE_HD inline int64_t slice_begin(int64_t chunks, int slice) {
  return chunks * slice / kSlices;
}

}  // namespace peregrine::cuda
