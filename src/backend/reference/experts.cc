// The router and the experts (spec: model.md 5.11).
#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/reference/reference_backend.h"
#include "backend/reference/selection.h"

namespace peregrine {
namespace {

constexpr float kWeightSumFloor = 1e-20f;
constexpr float kSoftplusLinear = 20.0f;  // above it softplus(z) = z

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// Unbiased scores of one row, in place of its logits.
void score(ScoreFunc function, std::vector<float>& z) {
  switch (function) {
    case ScoreFunc::kSqrtSoftplus:
      for (float& value : z) {
        value = std::sqrt(value > kSoftplusLinear ? value : std::log1p(std::exp(value)));
      }
      return;
    case ScoreFunc::kSigmoid:
      for (float& value : z) value = sigmoid(value);
      return;
    case ScoreFunc::kSoftmax: {
      const float largest = *std::max_element(z.begin(), z.end());
      float sum = 0;
      for (float& value : z) sum += value = std::exp(value - largest);
      for (float& value : z) value /= sum;
      return;
    }
  }
}

// t = a * sigmoid(a) * b after the clamps: the gate branch has no lower bound.
float gated(float a, float b, float limit) {
  if (limit > 0) {
    b = std::clamp(b, -limit, limit);
    a = std::min(a, limit);
  }
  return a * sigmoid(a) * b;
}

}  // namespace

void ReferenceBackend::route(Tensor logits, const Router& router, const uint8_t* is_image,
                             Tensor ids, Tensor weights) {
  const int k = router.n_active;
  std::vector<float> scores(static_cast<size_t>(router.n_experts));
  std::vector<float> biased(scores.size());
  for (int64_t r = 0; r < logits.rows; ++r) {
    const float* z = logits.f32() + r * logits.cols;
    for (int e = 0; e < router.n_experts; ++e) scores[e] = z[e] / config_.gate_temp;
    score(config_.score_func, scores);

    const bool image = is_image != nullptr && is_image[r] != 0 && router.bias_image != nullptr;
    const float* bias = image ? router.bias_image : router.bias;
    for (int e = 0; e < router.n_experts; ++e) biased[e] = scores[e] + bias[e];
    const std::vector<int32_t> chosen = reference::best_indices(biased, k);
    float divisor = 1;
    if (k > 1 && config_.norm_topk_prob) {
      float sum = 0;
      for (const int32_t e : chosen) sum += scores[e];
      divisor = sum + kWeightSumFloor;
    }
    for (int slot = 0; slot < k; ++slot) {
      ids.i32()[r * k + slot] = chosen[slot];
      weights.f32()[r * k + slot] = scores[chosen[slot]] / divisor * config_.route_scale;
    }
  }
}

void ReferenceBackend::experts(const ExpertsArgs& args) {
  const int64_t active = args.ids.cols;
  const int64_t dim = args.out.cols;
  std::vector<float> result(static_cast<size_t>(dim));
  std::vector<float> sum(static_cast<size_t>(dim));
  std::vector<float> gate;
  std::vector<float> up;

  // Adds the expert's output for row u to `sum`. The routing weight multiplies before w2 and so
  // before the quantisation of w2's input.
  const auto add_expert = [&](const Expert& expert, float weight, Tensor u) {
    const int64_t inner = expert.w1.out;
    gate.resize(static_cast<size_t>(inner));
    up.resize(static_cast<size_t>(inner));
    const Tensor a{gate.data(), 1, inner, Elem::kF32};
    const Tensor b{up.data(), 1, inner, Elem::kF32};
    ReferenceBackend::linear(u, expert.w1, LinearKind::kQuantised, a);
    ReferenceBackend::linear(u, expert.w3, LinearKind::kQuantised, b);
    for (int64_t i = 0; i < inner; ++i) {
      gate[i] = round(weight * gated(gate[i], up[i], config_.swiglu_limit));
    }
    ReferenceBackend::linear(a, expert.w2, LinearKind::kQuantised,
                             Tensor{result.data(), 1, dim, Elem::kF32});
    for (int64_t i = 0; i < dim; ++i) sum[i] += result[i];
  };

  for (int64_t r = 0; r < args.u.rows; ++r) {
    std::fill(sum.begin(), sum.end(), 0.0f);
    const Tensor u = args.u.slice(r, 1);
    for (int64_t slot = 0; slot < active; ++slot) {
      const int32_t id = args.ids.i32()[r * active + slot];
      add_expert(args.routed[static_cast<size_t>(id)], args.weights.f32()[r * active + slot], u);
    }
    if (args.shared != nullptr) add_expert(*args.shared, 1.0f, u);
    for (int64_t i = 0; i < dim; ++i) args.out.f32()[r * dim + i] = round(sum[i]);
  }
}

void ReferenceBackend::gate(Tensor a, Tensor b) {
  for (int64_t i = 0; i < a.rows * a.cols; ++i)
    a.f32()[i] = round(gated(a.f32()[i], b.f32()[i], config_.swiglu_limit));
}

}  // namespace peregrine
