// The kernels behind experts(): gate and up products with the activation, then the down product,
// for tiles of pairs (expert_lists.h). All variants give the same bits.
#pragma once

#include "backend/cuda/expert_lists.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/mma_product.h"
#include "backend/cuda/prepare.h"

namespace peregrine::cuda {

struct ExpertStep {
  const Expert* table = nullptr;  // device: routed experts, then the shared one
  Expert shared;                  // its last entry again, for the host and early loads
  int64_t rows = 0;
  int64_t dim = 0, inner = 0;
  Product routed_product = Product::kF4;  // the shared expert's is kF8
  ExpertLists lists;
  const float* weights = nullptr;  // [rows, active]
  float swiglu_limit = 0;
  Prepared routed_input, shared_input;  // u for each product
  uint16_t* gated = nullptr;            // bf16 [pairs, inner]
  Prepared inner_input;                 // its prepared form, by each pair's product
  uint16_t* output = nullptr;           // bf16 [pairs, dim]
};

inline constexpr int kTilePairs = 16;        // of a tile for the rows kernels
inline constexpr int kChunkTilePairs = 128;  // of a tile for the chunk kernels

void expert_rows_gate_up(const Launch& launch, const ExpertStep& step);
void expert_rows_down(const Launch& launch, const ExpertStep& step);
void expert_chunk_gate_up(const Launch& launch, const ExpertStep& step);
void expert_chunk_down(const Launch& launch, const ExpertStep& step);

}  // namespace peregrine::cuda
