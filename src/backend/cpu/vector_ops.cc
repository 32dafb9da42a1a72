// Norms, hyper-connection sums, expert gates and roundings of single rows, for every Highway
// target. Elementwise results use separate multiplications and additions in the reference's order,
// so that they are its bits; sums over a row run in sixteen lanes.
#include "backend/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/vector_ops.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

#include <algorithm>

#include "backend/cpu/kernels.h"
#include "backend/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace peregrine::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kWidth = 16;

// Sixteen values from x, or the first `left` of them and zeros.
HWY_INLINE Lanes load_some(const float* x, int64_t left) {
  if (left >= kWidth) return load(x);
  HWY_ALIGN float buffer[kWidth] = {};
  std::copy_n(x, left, buffer);
  return load(buffer);
}

HWY_INLINE void store_some(const Lanes& lanes, int64_t left, float* x) {
  if (left >= kWidth) return store(lanes, x);
  HWY_ALIGN float buffer[kWidth];
  store(lanes, buffer);
  std::copy_n(buffer, left, x);
}

float sum_squares(const float* x, int64_t n) {
  Lanes sums[2] = {broadcast(0.0f), broadcast(0.0f)};
  for (int64_t i = 0; i < n; i += 2 * kWidth) {
    const Lanes first = load_some(x + i, n - i);
    multiply_add(first, first, sums[0]);
    if (n - i > kWidth) {
      const Lanes second = load_some(x + i + kWidth, n - i - kWidth);
      multiply_add(second, second, sums[1]);
    }
  }
  return sum_lanes(add(sums[0], sums[1]));
}

void scale_by(const float* x, const float* norm, float factor, int64_t n, bool round, float* y) {
  const Lanes factors = broadcast(factor);
  for (int64_t i = 0; i < n; i += kWidth) {
    const Lanes scaled = multiply(load_some(x + i, n - i), factors);
    const Lanes value = multiply(load_some(norm + i, n - i), scaled);
    store_some(rounded_if(round, value), n - i, y + i);
  }
}

void collapse(const float* x, const float* factors, int copies, int64_t n, bool round, float* out) {
  for (int64_t d = 0; d < n; d += kWidth) {
    Lanes sum = broadcast(0.0f);
    for (int i = 0; i < copies; ++i) {
      sum = add(sum, multiply(broadcast(factors[i]), load_some(x + i * n + d, n - d)));
    }
    store_some(rounded_if(round, sum), n - d, out + d);
  }
}

void expand(const float* v, const float* post, const float* comb, int copies, int64_t n, bool round,
            float* x) {
  for (int64_t d = 0; d < n; d += kWidth) {
    Lanes before[kMaxCopies];
    for (int i = 0; i < copies; ++i) before[i] = load_some(x + i * n + d, n - d);
    const Lanes value = load_some(v + d, n - d);
    for (int j = 0; j < copies; ++j) {
      Lanes mixed = broadcast(0.0f);
      for (int i = 0; i < copies; ++i) {
        mixed = add(mixed, multiply(broadcast(comb[i * copies + j]), before[i]));
      }
      const Lanes result = add(multiply(broadcast(post[j]), value), mixed);
      store_some(rounded_if(round, result), n - d, x + j * n + d);
    }
  }
}

void gate(float* a, const float* b, float weight, float limit, int64_t n, bool round) {
  const FloatTag tag;
  const FloatVector one = hn::Set(tag, 1.0f);
  const FloatVector upper = hn::Set(tag, limit);
  for (int64_t i = 0; i < n; i += kWidth) {
    Lanes gates = load_some(a + i, n - i);
    const Lanes ups = load_some(b + i, n - i);
    PEREGRINE_UNROLL
    for (size_t p = 0; p < kParts; ++p) {
      FloatVector x = gates.part[p];
      FloatVector up = ups.part[p];
      if (limit > 0) {
        up = hn::Min(hn::Max(up, hn::Neg(upper)), upper);
        x = hn::Min(x, upper);
      }
      const FloatVector sigmoid = hn::Div(one, hn::Add(one, hn::Exp(tag, hn::Neg(x))));
      gates.part[p] = hn::Mul(hn::Set(tag, weight), hn::Mul(hn::Mul(x, sigmoid), up));
    }
    store_some(rounded_if(round, gates), n - i, a + i);
  }
}

void accumulate(const float* y, int64_t n, float* sum) {
  for (int64_t i = 0; i < n; i += kWidth) {
    store_some(add(load_some(sum + i, n - i), load_some(y + i, n - i)), n - i, sum + i);
  }
}

void round_row(float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += kWidth) {
    store_some(rounded(load_some(x + i, n - i)), n - i, x + i);
  }
}

VectorKernel make_kernel() {
  return {.sum_squares = &sum_squares,
          .scale_by = &scale_by,
          .collapse = &collapse,
          .expand = &expand,
          .gate = &gate,
          .accumulate = &accumulate,
          .round_row = &round_row};
}

}  // namespace
}  // namespace peregrine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace peregrine::cpu {

HWY_EXPORT(make_kernel);

VectorKernel vector_kernel(int64_t target) {
  return HWY_DISPATCH_TABLE(make_kernel)[target_index(target)]();
}

}  // namespace peregrine::cpu
#endif
