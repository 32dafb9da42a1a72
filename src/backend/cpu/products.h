// Matrix products spread over threads: which kernel family serves a weight, prepared inputs, and
// pieces of work.
//
// A piece is a range of at most 32 weight rows against all input rows given; pieces write disjoint
// outputs, so neither their number nor their order influences a result.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/scratch.h"
#include "base/thread_pool.h"

namespace peregrine::cpu {

// Input rows laid out for one weight format by one kernel family.
struct PreparedRows {
  const std::byte* data = nullptr;
  size_t row_bytes = 0;
  const std::byte* row(int64_t r) const { return data + static_cast<size_t>(r) * row_bytes; }
};

// One weight, or a group of its rows, against some input rows.
struct Product {
  const Weight* weight = nullptr;
  int64_t begin = 0;  // weight rows
  int64_t end = 0;
  const std::byte* const* inputs = nullptr;  // [rows]
  float* const* outputs = nullptr;           // [rows], indexed by weight row
  int rows = 0;
  bool round = false;
};

class Products {
 public:
  // `bf16` may be nullptr.
  Products(const ProductKernel& f32, const ProductKernel* bf16, Numerics numerics,
           ThreadPool& pool);

  // Bytes of one prepared row for this weight.
  size_t row_bytes(const Weight& weight) const;
  bool quantises(const Weight& weight, LinearKind kind) const;
  // x [rows of weight.in values, `stride` apart] -> out, in parallel.
  PreparedRows prepare(const Weight& weight, LinearKind kind, const float* x, int64_t rows,
                       int64_t stride, std::byte* out);
  void prepare_row(const Weight& weight, LinearKind kind, const float* x, std::byte* out) const;

  // Runs all products as one parallel loop.
  void run(const std::vector<Product>& products);

 private:
  struct Piece {
    const Product* product;
    int64_t begin;
    int64_t end;
  };

  const ProductKernel& kernel(const Weight& weight) const;
  void cut(const Product& product, int64_t piece_rows);

  const ProductKernel f32_;
  const ProductKernel* const bf16_;
  const Numerics numerics_;
  ThreadPool& pool_;
  std::vector<Piece> pieces_;
  std::vector<Scratch> thread_scratch_;
};

}  // namespace peregrine::cpu
