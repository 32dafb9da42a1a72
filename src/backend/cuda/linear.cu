// Choice of kernels: by formats, shapes and numerics, and between kernels that give the same bits
// by the number of rows.
#include "backend/cuda/linear.h"

#include <algorithm>

#include "backend/cuda/linear_kernels.h"

namespace peregrine::cuda {
namespace {

// Tensor core products exist for bf16 activations; `true` and how to compute it, or false.
bool tensor_core_product(const Launch& launch, const Weight& w, LinearKind kind, Product& product,
                         bool& quantise) {
  if (launch.numerics != Numerics::kBF16 || w.in % 32 != 0) return false;
  quantise = kind == LinearKind::kQuantised;
  switch (w.format) {
    case WeightFormat::kF8:
      product = Product::kF8;
      return true;
    case WeightFormat::kF4:
      product = Product::kF4;
      return quantise;
    case WeightFormat::kBF16:
      product = Product::kBF16;
      return true;
    case WeightFormat::kF32:
      return false;
  }
  return false;
}

void product_of(const Launch& launch, Tensor x, const Weight& w, LinearKind kind, int groups,
                Tensor y) {
  if (x.rows == 0) return;
  Product product;
  bool quantise;
  const int64_t group_out = w.out / groups;
  const bool whole_tiles = groups == 1 || group_out % 16 == 0;
  if (!whole_tiles || !tensor_core_product(launch, w, kind, product, quantise))
    return linear_plain(launch, x, w, groups, y);
  std::byte* memory = launch.scratch.get(prepared_bytes(x.rows, x.cols));
  const auto* values = static_cast<const uint16_t*>(x.data);
  if (x.rows > kMaxStreamRows && (groups == 1 || group_out % kChunkOutputs == 0)) {
    const Prepared inputs = prepare(launch, product, quantise, values, x.rows, x.cols,
                                    InputLayout::kInstructions, memory);
    linear_chunk(launch, product, {inputs, x.rows, w, group_out, y});
    return;
  }
  for (int64_t row = 0; row < x.rows; row += kMaxStreamRows) {
    const int64_t rows = std::min(kMaxStreamRows, x.rows - row);
    const Prepared inputs = prepare(launch, product, quantise, values + row * x.cols, rows, x.cols,
                                    InputLayout::kInterleaved, memory);
    linear_rows(launch, product, {inputs, rows, w, group_out, y.slice(row, rows)});
  }
}

}  // namespace

void linear(const Launch& launch, Tensor x, const Weight& w, LinearKind kind, Tensor y) {
  product_of(launch, x, w, kind, 1, y);
}

void grouped_linear(const Launch& launch, Tensor x, const Weight& w, int groups, Tensor y) {
  product_of(launch, x, w, LinearKind::kPlain, groups, y);
}

}  // namespace peregrine::cuda
