// Hyper-connections: mixes, collapse, expand, and the drafter's taps (spec: model.md 5.3).
#include "backend/reference/hyper_connections.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/reference/reference_backend.h"
#include "backend/reference/rms.h"

namespace peregrine {
namespace reference {
namespace {

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

void softmax_rows(float* comb, int n, float eps) {
  for (int i = 0; i < n; ++i) {
    float* row = comb + i * n;
    const float largest = *std::max_element(row, row + n);
    float sum = 0;
    for (int j = 0; j < n; ++j) {
      row[j] = std::exp(row[j] - largest);
      sum += row[j];
    }
    for (int j = 0; j < n; ++j) row[j] = row[j] / sum + eps;
  }
}

// Divides every line of n elements `step` apart by its sum plus eps; lines start `start` apart.
void normalise(float* comb, int n, int start, int step, float eps) {
  for (int line = 0; line < n; ++line) {
    float* first = comb + line * start;
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += first[k * step];
    for (int k = 0; k < n; ++k) first[k * step] /= sum + eps;
  }
}

void normalise_rows(float* comb, int n, float eps) { normalise(comb, n, n, 1, eps); }
void normalise_columns(float* comb, int n, float eps) { normalise(comb, n, 1, n, eps); }

}  // namespace

void hc_coefficients(const HcShape& shape, const float* mixes, const float* scale,
                     const float* base, float* pre, float* post, float* comb) {
  const int n = shape.copies;
  for (int i = 0; i < n; ++i) {
    pre[i] = sigmoid(mixes[i] * scale[0] + base[i]) + shape.eps;
    post[i] = 2.0f * sigmoid(mixes[n + i] * scale[1] + base[n + i]);
  }
  for (int k = 0; k < n * n; ++k) comb[k] = mixes[2 * n + k] * scale[2] + base[2 * n + k];
  softmax_rows(comb, n, shape.eps);
  normalise_columns(comb, n, shape.eps);
  for (int iteration = 1; iteration < shape.sinkhorn_iterations; ++iteration) {
    normalise_rows(comb, n, shape.eps);
    normalise_columns(comb, n, shape.eps);
  }
}

}  // namespace reference

void ReferenceBackend::hc_mixes(Tensor x, const HcWeights& weights, HcMix mix) {
  const int n = static_cast<int>(mix.pre.cols);
  const int outputs = (2 + n) * n;
  const reference::HcShape shape{
      .copies = n, .sinkhorn_iterations = config_.hc_sinkhorn_iters, .eps = config_.hc_eps};
  std::vector<float> mixes(static_cast<size_t>(outputs));
  for (int64_t r = 0; r < x.rows; ++r) {
    const float* stream = x.f32() + r * x.cols;
    const float factor = reference::rms_factor(stream, x.cols, config_.norm_eps);
    for (int o = 0; o < outputs; ++o) {
      float sum = 0;
      for (int64_t i = 0; i < x.cols; ++i) sum += weights.fn[o * x.cols + i] * stream[i];
      mixes[o] = sum * factor;
    }
    reference::hc_coefficients(shape, mixes.data(), weights.scale, weights.base,
                               mix.pre.f32() + r * n, mix.post.f32() + r * n,
                               mix.comb.f32() + r * n * n);
  }
}

void ReferenceBackend::hc_collapse(Tensor x, Tensor pre, Tensor out) {
  const int64_t n = pre.cols;
  const int64_t dim = out.cols;
  for (int64_t r = 0; r < x.rows; ++r) {
    const float* copies = x.f32() + r * x.cols;
    const float* factors = pre.f32() + r * n;
    for (int64_t d = 0; d < dim; ++d) {
      float sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += factors[i] * copies[i * dim + d];
      out.f32()[r * dim + d] = round(sum);
    }
  }
}

void ReferenceBackend::hc_collapse_norm(Tensor x, Tensor pre, const float* norm, Tensor u) {
  ReferenceBackend::hc_collapse(x, pre, u);
  ReferenceBackend::rms_norm(u, norm, u);
}

void ReferenceBackend::hc_expand(Tensor v, Tensor post, Tensor comb, Tensor x) {
  const int64_t n = post.cols;
  const int64_t dim = v.cols;
  std::vector<float> before(static_cast<size_t>(n));
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t d = 0; d < dim; ++d) {
      float* stream = x.f32() + r * x.cols + d;
      for (int64_t i = 0; i < n; ++i) before[i] = stream[i * dim];
      for (int64_t j = 0; j < n; ++j) {
        float mixed = 0;
        for (int64_t i = 0; i < n; ++i) mixed += comb.f32()[(r * n + i) * n + j] * before[i];
        stream[j * dim] = round(post.f32()[r * n + j] * v.f32()[r * dim + d] + mixed);
      }
    }
  }
}

void ReferenceBackend::hc_tap(Tensor x, int64_t column, Tensor out) {
  const int64_t n = config_.hc_mult;
  const int64_t dim = x.cols / n;
  for (int64_t r = 0; r < x.rows; ++r) {
    const float* copies = x.f32() + r * x.cols;
    for (int64_t d = 0; d < dim; ++d) {
      float sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += copies[i * dim + d];
      out.f32()[r * out.cols + column + d] = round(sum / static_cast<float>(n));
    }
  }
}

}  // namespace peregrine
