#include "backend/cpu/products.h"

#include <algorithm>

namespace peregrine::cpu {
namespace {

// Below this many pieces a thread, pieces are made smaller.
constexpr int64_t kPiecesPerThread = 4;
constexpr int64_t kSmallPiece = 4;

bool has_scales(const Weight& weight) {
  return weight.format == WeightFormat::kF8 || weight.format == WeightFormat::kF4;
}

}  // namespace

Products::Products(const ProductKernel& f32, const ProductKernel* bf16, Numerics numerics,
                   ThreadPool& pool)
    : f32_(f32),
      bf16_(bf16),
      numerics_(numerics),
      pool_(pool),
      thread_scratch_(static_cast<size_t>(pool.threads())) {}

// With f32 numerics inputs are not bf16 numbers.
const ProductKernel& Products::kernel(const Weight& weight) const {
  const bool fits = numerics_ == Numerics::kBF16 && weight.format != WeightFormat::kF32;
  return bf16_ != nullptr && fits ? *bf16_ : f32_;
}

size_t Products::row_bytes(const Weight& weight) const {
  return kernel(weight).row_bytes(weight.in);
}

bool Products::quantises(const Weight& weight, LinearKind kind) const {
  return kind == LinearKind::kQuantised && has_scales(weight) && numerics_ == Numerics::kBF16;
}

void Products::prepare_row(const Weight& weight, LinearKind kind, const float* x,
                           std::byte* out) const {
  kernel(weight).prepare(weight.format, quantises(weight, kind), x, weight.in, out);
}

PreparedRows Products::prepare(const Weight& weight, LinearKind kind, const float* x, int64_t rows,
                               int64_t stride, std::byte* out) {
  const PreparedRows prepared{.data = out, .row_bytes = row_bytes(weight)};
  pool_.parallel_for(rows, [&](int64_t r) {
    prepare_row(weight, kind, x + r * stride, out + static_cast<size_t>(r) * prepared.row_bytes);
  });
  return prepared;
}

void Products::cut(const Product& product, int64_t piece_rows) {
  for (int64_t begin = product.begin; begin < product.end;) {
    const int64_t end = std::min(product.end, (begin / piece_rows + 1) * piece_rows);
    pieces_.push_back({.product = &product, .begin = begin, .end = end});
    begin = end;
  }
}

void Products::run(const std::vector<Product>& products) {
  int64_t outputs = 0;
  size_t scratch_bytes = 0;
  for (const Product& product : products) {
    outputs += product.end - product.begin;
    const size_t bytes = kernel(*product.weight).scratch_bytes(product.weight->in);
    scratch_bytes = std::max(scratch_bytes, bytes);
  }
  const bool few = outputs < kPiecesPerThread * kTileOut * pool_.threads();
  pieces_.clear();
  for (const Product& product : products) cut(product, few ? kSmallPiece : kTileOut);
  for (Scratch& scratch : thread_scratch_) scratch.reserve(scratch_bytes);

  pool_.parallel_for(static_cast<int64_t>(pieces_.size()), [&](int64_t i, int thread) {
    const Piece& piece = pieces_[static_cast<size_t>(i)];
    const Product& product = *piece.product;
    kernel(*product.weight)
        .multiply({.weight = product.weight,
                   .begin = piece.begin,
                   .end = piece.end,
                   .inputs = product.inputs,
                   .outputs = product.outputs,
                   .rows = product.rows,
                   .round = product.round,
                   .scratch = thread_scratch_[static_cast<size_t>(thread)].reserve(0)});
  });
}

}  // namespace peregrine::cpu
