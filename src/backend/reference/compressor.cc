// Writers of per-sequence state: window rings, pooled pairs, compressed rows and index keys (spec:
// model.md 5.4, 5.5, section 7). What is live follows from positions alone: group j of a source
// completes at the position p with p / ratio == j and (p + 1) % ratio == 0.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/reference/reference_backend.h"
#include "formats/quantize.h"

namespace peregrine {
namespace {

// Whether row r completes a group that this step may write.
bool completes_group(const StepRows& step, int64_t r, int ratio) {
  return step.writes_kv[r] != 0 && (step.pos[r] + 1) % ratio == 0;
}

// Softmax of two gates applied to two values.
float pool(float a0, float g0, float a1, float g1) {
  const float largest = std::max(g0, g1);
  const float e0 = std::exp(g0 - largest);
  const float e1 = std::exp(g1 - largest);
  const float sum = e0 + e1;
  return e0 / sum * a0 + e1 / sum * a1;
}

}  // namespace

void ReferenceBackend::pack_window(Tensor kv, Tensor packed) {
  for (int64_t r = 0; r < kv.rows; ++r) {
    uint8_t* codes = packed.u8() + r * packed.cols;
    act_quant_row(kv.f32() + r * kv.cols, kv.cols, codes, codes + kv.cols);
  }
}

void ReferenceBackend::store_window(Tensor packed, const StepRows& step, int ring_layer,
                                    const KvView& kv) {
  for (int r = 0; r < step.rows; ++r) {
    if (step.end_row[r] - r > kv.ring_rows) continue;  // a later row of the step takes the place
    std::memcpy(kv.ring_row(step.slot[r], ring_layer, step.pos[r]), packed.u8() + r * packed.cols,
                kv.window_row_bytes);
  }
}

void ReferenceBackend::compress_pairs(Tensor a, Tensor g, const StepRows& step, int source,
                                      const KvView& kv, Tensor latent) {
  const int64_t dim = latent.cols;
  for (int64_t r = 0; r < step.rows; ++r) {
    const float* a_row = a.f32() + r * dim;
    const float* g_row = g.f32() + r * dim;
    float* out = latent.f32() + r * dim;
    const int32_t position = step.pos[r];
    if (position % 2 == 0) {
      float* tail = kv.tail(step.slot[r], source, position);
      std::copy_n(a_row, dim, tail);
      std::copy_n(g_row, dim, tail + dim);
      std::fill_n(out, dim, 0.0f);
      continue;
    }
    // The even half: the row before in the same segment, else what an earlier step left. Rows are
    // taken in order, so a later even row cannot have overwritten it.
    const float* tail = kv.tail(step.slot[r], source, position - 1);
    const bool in_step = r > step.first_row[r];
    const float* a_even = in_step ? a_row - dim : tail;
    const float* g_even = in_step ? g_row - dim : tail + dim;
    for (int64_t i = 0; i < dim; ++i) {
      out[i] = round(pool(a_even[i], g_even[i], a_row[i], g_row[i]));
    }
  }
}

void ReferenceBackend::store_compressed(Tensor latent, const StepRows& step, int source, int ratio,
                                        const KvView& kv) {
  for (int64_t r = 0; r < step.rows; ++r) {
    if (!completes_group(step, r, ratio)) continue;
    uint8_t* codes = kv.main_row(step.slot[r], source, step.pos[r] / ratio);
    fp4_e4m3_row(latent.f32() + r * latent.cols, latent.cols, codes, codes + latent.cols / 2);
  }
}

void ReferenceBackend::store_index_keys(Tensor keys, const StepRows& step, int source, int ratio,
                                        const KvView& kv) {
  for (int64_t r = 0; r < step.rows; ++r) {
    if (!completes_group(step, r, ratio)) continue;
    uint8_t* codes = kv.index_row(step.slot[r], source, step.pos[r] / ratio);
    fp4_e8m0_row(keys.f32() + r * keys.cols, keys.cols, codes, codes + keys.cols / 2);
  }
}

}  // namespace peregrine
