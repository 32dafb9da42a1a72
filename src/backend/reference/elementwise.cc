// Norms, rotations and the two elementwise operations (spec: model.md section 4).
#include <cmath>

#include "backend/reference/reference_backend.h"
#include "backend/reference/rms.h"

namespace peregrine {

void ReferenceBackend::rms_norm(Tensor x, const float* norm, Tensor y) {
  for (int64_t r = 0; r < x.rows; ++r) {
    const float* in = x.f32() + r * x.cols;
    float* out = y.f32() + r * x.cols;
    const float factor = reference::rms_factor(in, x.cols, config_.norm_eps);
    for (int64_t i = 0; i < x.cols; ++i) out[i] = round(norm[i] * (in[i] * factor));
  }
}

// The angle is rounded to f32 before the sine: part of the model at long range. Sine and cosine of
// that number are computed in double and rounded, which is as near as f32 comes to them.
void ReferenceBackend::rope(Tensor x, int heads, const StepRows& step, const RopeParams& params) {
  const int64_t head_dim = x.cols / heads;
  for (int64_t r = 0; r < x.rows; ++r) {
    const int32_t position = step.pos[r] / params.position_step * params.position_step;
    for (int i = 0; i < params.rope_dim / 2; ++i) {
      const float angle = static_cast<float>(position) * params.frequencies[i];
      const float c = static_cast<float>(std::cos(static_cast<double>(angle)));
      const float sine = static_cast<float>(std::sin(static_cast<double>(angle)));
      const float s = params.inverse ? -sine : sine;
      for (int h = 0; h < heads; ++h) {
        float* pair = x.f32() + r * x.cols + (h + 1) * head_dim - params.rope_dim + 2 * i;
        const float a = pair[0];
        const float b = pair[1];
        pair[0] = round(a * c - b * s);
        pair[1] = round(a * s + b * c);
      }
    }
  }
}

void ReferenceBackend::scale(Tensor x, float factor) {
  for (int64_t i = 0; i < x.rows * x.cols; ++i) x.f32()[i] = round(x.f32()[i] * factor);
}

void ReferenceBackend::add(Tensor x, Tensor y) {
  for (int64_t i = 0; i < x.rows * x.cols; ++i) y.f32()[i] += x.f32()[i];
}

}  // namespace peregrine
