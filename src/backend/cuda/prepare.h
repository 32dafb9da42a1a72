// Inputs of a matrix product in the form its kernels read.
#pragma once

#include "backend/cuda/launch.h"
#include "backend/cuda/mma_product.h"

namespace peregrine::cuda {

// How the 32 inputs of a block and the blocks of several rows lie in memory.
enum class InputLayout {
  // Row by row [rows, in], in a block the eight inputs of each quad number together in the order of
  // input_order().
  kRows,
  // The same for kernels that read a block of eight rows at once: [rows / 8][in / 32][8 rows][32].
  kInterleaved,
  // Row by row, in a block the 16 inputs of each instruction together, as wgmma reads them.
  kInstructions,
};

// Prepared inputs: bf16; quantised ones already carry their scale.
struct Prepared {
  const uint16_t* values = nullptr;
  int64_t in = 0;
  bool interleaved = false;

  PEREGRINE_HD const uint16_t* row(int64_t r) const {
    return values + (interleaved ? (r / 8 * (in / 32) * 8 + r % 8) * 32 : r * in);
  }
  // From a block of 32 inputs to the next.
  PEREGRINE_HD int block_stride() const { return interleaved ? 256 : 32; }
};

size_t prepared_bytes(int64_t rows, int64_t in);

// x bf16 [rows, in], `in` a multiple of 32; `memory` holds prepared_bytes. `quantise`: round as
// act_quant does first.
Prepared prepare(const Launch& launch, Product product, bool quantise, const uint16_t* x,
                 int64_t rows, int64_t in, InputLayout layout, std::byte* memory);

// Quantised inputs of two products, `a` for the first and `b` for an F8 one.
struct PreparedTwice {
  Prepared a, b;
};
PreparedTwice prepare_twice(const Launch& launch, Product a, const uint16_t* x, int64_t rows,
                            int64_t in, InputLayout layout, std::byte* memory_a,
                            std::byte* memory_b);

// Quantised rows of two products in turn: with slots > 0 every row whose number is slots - 1 modulo
// slots is prepared for F8, all others for `product`. `layout`: not kInterleaved.
Prepared prepare_pairs(const Launch& launch, Product product, int slots, const uint16_t* x,
                       int64_t rows, int64_t in, InputLayout layout, std::byte* memory);

}  // namespace peregrine::cuda
