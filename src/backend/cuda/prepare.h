// Inputs of a matrix product in the form its kernels read.
#pragma once

#include "backend/cuda/launch.h"
#include "backend/cuda/mma_product.h"

namespace peregrine::cuda {

// Prepared inputs: 16-bit numbers [rows, in] in the order of input_order(), and for quantised
// products the scale of every 32 of them [rows, in / 32] times 2^code_bias.
struct Prepared {
  const uint16_t* values = nullptr;
  const float* scales = nullptr;
  int64_t in = 0;
};

size_t prepared_bytes(Product product, int64_t rows, int64_t in);

// x bf16 [rows, in], `in` a multiple of 32; `memory` holds prepared_bytes. kBF16 inputs need no
// preparation and are returned as they are.
Prepared prepare(const Launch& launch, Product product, const uint16_t* x, int64_t rows, int64_t in,
                 std::byte* memory);

// The same for rows of two quantised products in turn: with slots > 0 every row whose number is
// slots - 1 modulo slots is prepared for kF8Codes, all others for `product`. `memory` holds
// prepared_bytes of any quantised product.
Prepared prepare_pairs(const Launch& launch, Product product, int slots, const uint16_t* x,
                       int64_t rows, int64_t in, std::byte* memory);

}  // namespace peregrine::cuda
