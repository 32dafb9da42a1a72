// Linear operations: inputs prepared once, then all output rows as one parallel loop.
#include <algorithm>
#include <vector>

#include "backend/cpu/cpu_backend.h"

namespace peregrine {
namespace {

// Input rows multiplied at a time: bounds the prepared inputs. A panel of weights is widened again
// for each group of rows, which costs little beside so many rows.
constexpr size_t kPreparedBytes = size_t{8} << 20;
constexpr int64_t kLeastRows = 32;

}  // namespace

void CpuBackend::multiply_rows(Tensor x, const Weight& w, int groups, LinearKind kind, Tensor y) {
  const size_t row_bytes = products_.row_bytes(w);
  const int64_t fitting = static_cast<int64_t>(kPreparedBytes / (row_bytes * groups));
  const int64_t chunk = std::max(kLeastRows, fitting);
  const int64_t group_out = w.out / groups;
  std::vector<const std::byte*> inputs;
  std::vector<float*> outputs;
  std::vector<cpu::Product> work;
  for (int64_t begin = 0; begin < x.rows; begin += chunk) {
    const int64_t rows = std::min(chunk, x.rows - begin);
    std::byte* prepared = input_scratch_.reserve(static_cast<size_t>(rows * groups) * row_bytes);
    // A row of x is `groups` inputs in sequence.
    products_.prepare(w, kind, x.f32() + begin * x.cols, rows * groups, w.in, prepared);
    inputs.clear();
    for (int64_t group = 0; group < groups; ++group) {
      for (int64_t r = 0; r < rows; ++r) {
        inputs.push_back(prepared + static_cast<size_t>(r * groups + group) * row_bytes);
      }
    }
    outputs.clear();
    for (int64_t r = 0; r < rows; ++r) outputs.push_back(y.f32() + (begin + r) * y.cols);
    work.clear();
    for (int64_t group = 0; group < groups; ++group) {
      work.push_back({.weight = &w,
                      .begin = group * group_out,
                      .end = (group + 1) * group_out,
                      .inputs = inputs.data() + group * rows,
                      .outputs = outputs.data(),
                      .rows = static_cast<int>(rows),
                      .round = kind != LinearKind::kFull && rounds()});
    }
    products_.run(work);
  }
}

void CpuBackend::linear(Tensor x, const Weight& w, LinearKind kind, Tensor y) {
  multiply_rows(x, w, 1, kind, y);
}

void CpuBackend::grouped_linear(Tensor x, const Weight& w, int groups, Tensor y) {
  multiply_rows(x, w, groups, LinearKind::kPlain, y);
}

}  // namespace peregrine
