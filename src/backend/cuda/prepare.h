// Inputs of a matrix product in the form its kernels read.
#pragma once

#include "backend/cuda/launch.h"
#include "backend/cuda/mma_product.h"

namespace peregrine::cuda {

// Prepared inputs: 16-bit numbers in the order of input_order(), and for quantised products the
// scale of every 32 of them times 2^code_bias. Row by row [rows, in], or, for kernels that read the
// same block of eight rows at once, interleaved: [rows / 8][in / 32][8 rows][32].
struct Prepared {
  const uint16_t* values = nullptr;
  const float* scales = nullptr;
  int64_t in = 0;
  bool interleaved = false;

  PEREGRINE_HD const uint16_t* row(int64_t r) const {
    return values + (interleaved ? (r / 8 * (in / 32) * 8 + r % 8) * 32 : r * in);
  }
  PEREGRINE_HD const float* scale_row(int64_t r) const {
    return scales + (interleaved ? r / 8 * (in / 32) * 8 + r % 8 : r * (in / 32));
  }
  // From a block of 32 inputs to the next.
  PEREGRINE_HD int block_stride() const { return interleaved ? 256 : 32; }
  PEREGRINE_HD int scale_stride() const { return interleaved ? 8 : 1; }
};

size_t prepared_bytes(int64_t rows, int64_t in);

// x bf16 [rows, in], `in` a multiple of 32; `memory` holds prepared_bytes.
Prepared prepare(const Launch& launch, Product product, const uint16_t* x, int64_t rows, int64_t in,
                 bool interleaved, std::byte* memory);

// The same for rows of two quantised products in turn: with slots > 0 every row whose number is
// slots - 1 modulo slots is prepared for kF8Codes, all others for `product`. `memory` holds
// prepared_bytes.
Prepared prepare_pairs(const Launch& launch, Product product, int slots, const uint16_t* x,
                       int64_t rows, int64_t in, std::byte* memory);

}  // namespace peregrine::cuda
