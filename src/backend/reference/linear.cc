// Matrix products (spec: model.md section 4, quantization.md section 7).
//
// Outputs are the outer loop, so that a stored weight row is widened once for all rows of the step;
// the sum of one output is the same whichever rows stand beside it.
#include <vector>

#include "backend/reference/reference_backend.h"
#include "backend/reference/weight_row.h"
#include "formats/quantize.h"

namespace peregrine {
namespace {

using reference::kScaleBlock;

float dot(const float* a, const float* b, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// x [rows, in] after act_quant: the numbers its e4m3 codes mean, and the scale of each 32 of them.
struct QuantisedInput {
  std::vector<float> codes;   // [rows, in]
  std::vector<float> scales;  // [rows, in / 32]
};

QuantisedInput quantise(const float* x, int64_t rows, int64_t in) {
  QuantisedInput quantised;
  quantised.codes.resize(static_cast<size_t>(rows * in));
  quantised.scales.resize(static_cast<size_t>(rows * in / kActBlock));
  uint8_t codes[kActBlock];
  uint8_t scale = 0;
  for (int64_t begin = 0; begin < rows * in; begin += kActBlock) {
    act_quant_block(x + begin, codes, &scale);
    quantised.scales[static_cast<size_t>(begin / kActBlock)] = e8m0_value(scale);
    for (int i = 0; i < kActBlock; ++i) {
      quantised.codes[static_cast<size_t>(begin + i)] = e4m3_value(codes[i]);
    }
  }
  return quantised;
}

}  // namespace

void ReferenceBackend::linear(Tensor x, const Weight& w, LinearKind kind, Tensor y) {
  if (kind != LinearKind::kQuantised || !reference::has_scales(w) || numerics_ == Numerics::kF32) {
    std::vector<float> row(static_cast<size_t>(w.in));
    for (int64_t o = 0; o < w.out; ++o) {
      reference::widen_row(w, o, row.data());
      for (int64_t r = 0; r < x.rows; ++r) {
        const float sum = dot(x.f32() + r * w.in, row.data(), w.in);
        y.f32()[r * w.out + o] = kind == LinearKind::kFull ? sum : round(sum);
      }
    }
    return;
  }
  const QuantisedInput input = quantise(x.f32(), x.rows, w.in);
  const int64_t blocks = w.in / kScaleBlock;
  std::vector<float> codes(static_cast<size_t>(w.in));
  for (int64_t o = 0; o < w.out; ++o) {
    reference::stored_row(w, o, codes.data());
    for (int64_t r = 0; r < x.rows; ++r) {
      float sum = 0;
      for (int64_t b = 0; b < blocks; ++b) {
        const float scale =
            input.scales[static_cast<size_t>(r * blocks + b)] * reference::weight_scale(w, o, b);
        sum += scale * dot(input.codes.data() + r * w.in + b * kScaleBlock,
                           codes.data() + b * kScaleBlock, kScaleBlock);
      }
      y.f32()[r * w.out + o] = round(sum);
    }
  }
}

void ReferenceBackend::grouped_linear(Tensor x, const Weight& w, int groups, Tensor y) {
  const int64_t out = w.out / groups;
  std::vector<float> row(static_cast<size_t>(w.in));
  for (int64_t o = 0; o < w.out; ++o) {
    const int64_t group = o / out;
    reference::widen_row(w, o, row.data());
    for (int64_t r = 0; r < x.rows; ++r) {
      y.f32()[r * w.out + o] = round(dot(x.f32() + r * x.cols + group * w.in, row.data(), w.in));
    }
  }
}

// The product over [x ; e], as one sum that runs on from x to e.
void ReferenceBackend::confidence(Tensor x, Tensor e, const Weight& proj, Tensor out) {
  std::vector<float> row(static_cast<size_t>(proj.in));
  reference::widen_row(proj, 0, row.data());
  for (int64_t r = 0; r < x.rows; ++r) {
    float sum = 0;
    for (int64_t i = 0; i < x.cols; ++i) sum += x.f32()[r * x.cols + i] * row[i];
    for (int64_t i = 0; i < e.cols; ++i) sum += e.f32()[r * e.cols + i] * row[x.cols + i];
    out.f32()[r] = sum;
  }
}

}  // namespace peregrine
