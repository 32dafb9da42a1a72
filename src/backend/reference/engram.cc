// The n-gram memory: table rows and the gated addition to the stream (spec: engram.md section 5).
#include <algorithm>
#include <cmath>

#include "backend/reference/reference_backend.h"
#include "backend/reference/rms.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"

namespace peregrine {
namespace {

constexpr int kTableScaleBlock = 32;  // values of a table row that share a scale
constexpr float kGateFloor = 1e-6f;

// sigmoid(sign(t) * sqrt(max(|t|, 1e-6))); the sign is the sign bit, so -0 is negative.
float gate_of(float t) {
  const float root = std::sqrt(std::max(std::fabs(t), kGateFloor));
  return 1.0f / (1.0f + std::exp(std::signbit(t) ? root : -root));
}

}  // namespace

void ReferenceBackend::engram_gather(const EngramTable& table, const int64_t* row_ids, int columns,
                                     Tensor out) {
  const int64_t width = table.width;
  for (int64_t r = 0; r < out.rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t row = row_ids[r * columns + c];
      const uint8_t* codes = table.codes + row * width;
      const uint8_t* scales = table.scales + row * (width / kTableScaleBlock);
      float* values = out.f32() + r * out.cols + c * width;
      for (int64_t i = 0; i < width; ++i) {
        values[i] = round(e4m3_value(codes[i]) * e8m0_value(scales[i / kTableScaleBlock]));
      }
    }
  }
}

void ReferenceBackend::engram_mix(const EngramMixArgs& args) {
  const int64_t dim = args.kv.cols - args.x.cols;
  const int64_t n = args.x.cols / dim;
  const float width_factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
  for (int64_t r = 0; r < args.x.rows; ++r) {
    if (args.is_image != nullptr && args.is_image[r] != 0) continue;  // gate 0
    const float* value = args.kv.f32() + r * args.kv.cols + n * dim;
    for (int64_t copy = 0; copy < n; ++copy) {
      float* h = args.x.f32() + r * args.x.cols + copy * dim;
      const float* key = args.kv.f32() + r * args.kv.cols + copy * dim;
      const float* gain = args.gain + copy * dim;
      float product = 0;
      for (int64_t i = 0; i < dim; ++i) product += h[i] * gain[i] * key[i];
      const float norms = reference::rms_factor(h, dim, config_.norm_eps) *
                          reference::rms_factor(key, dim, config_.norm_eps);
      const float gate = gate_of(product * norms * width_factor);
      for (int64_t i = 0; i < dim; ++i) h[i] = round(h[i] + gate * value[i]);
    }
  }
}

}  // namespace peregrine
