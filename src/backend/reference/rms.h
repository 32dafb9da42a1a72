// The RMS factor shared by norms, hyper-connections and Engram (spec: model.md section 4).
#pragma once

#include <cmath>
#include <cstdint>

namespace peregrine::reference {

// rsqrt(mean(x * x) + eps) over n values, f32.
inline float rms_factor(const float* x, int64_t n, float eps) {
  float squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += x[i] * x[i];
  return 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
}

}  // namespace peregrine::reference
