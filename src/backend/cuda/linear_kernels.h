// The kernels behind linear.h; linear.cu chooses. All give the same bits where more than one can
// compute a product.
#pragma once

#include "backend/cuda/launch.h"
#include "backend/cuda/mma_product.h"
#include "backend/cuda/prepare.h"

namespace peregrine::cuda {

// y [rows, w.out], bf16 or f32. Outputs of group o / group_out read inputs from
// group * w.in on; without groups group_out = w.out.
struct LinearArgs {
  Prepared x;
  int64_t rows = 0;
  Weight w;
  int64_t group_out = 0;
  Tensor y;
};

inline constexpr int64_t kMaxStreamRows = 16;
inline constexpr int kChunkOutputs = 128;  // of a block of linear_chunk

// 1..16 rows, bound by memory: linear_rows.cu.
void linear_rows(const Launch& launch, Product product, const LinearArgs& args);
// More rows, bound by the tensor cores: linear_chunk.cu.
void linear_chunk(const Launch& launch, Product product, const LinearArgs& args);
// Any formats, f32 arithmetic without tensor cores: linear_plain.cu. x: act tensor.
void linear_plain(const Launch& launch, Tensor x, const Weight& w, int groups, Tensor y);

}  // namespace peregrine::cuda
