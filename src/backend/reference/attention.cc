// Sparse attention over window rows and selected compressed rows (spec: model.md 5.9, section 7).
#include "backend/reference/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/reference/reference_backend.h"
#include "formats/quantize.h"

namespace peregrine {
namespace reference {
namespace {

constexpr size_t kTileRows = 64;
constexpr float kMaximumStart = -1e30f;

float dot(const float* a, const float* b, int n) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// What the tiles so far add up to, relative to the largest score so far.
struct Running {
  float maximum = kMaximumStart;
  float denominator = 0;
  std::vector<float> numerator;  // [dim]
};

void add_tile(const HeadQuery& query, std::span<const float* const> tile, Numerics numerics,
              Running& running) {
  float scores[kTileRows];
  float maximum = running.maximum;
  for (size_t t = 0; t < tile.size(); ++t) {
    if (tile[t] == nullptr) continue;
    scores[t] = dot(query.q, tile[t], query.dim) * query.scale;
    maximum = std::max(maximum, scores[t]);
  }
  const float rescale = std::exp(running.maximum - maximum);
  running.maximum = maximum;
  running.denominator *= rescale;
  for (float& value : running.numerator) value *= rescale;

  float tile_sum = 0;
  for (size_t t = 0; t < tile.size(); ++t) {
    if (tile[t] == nullptr) continue;
    const float e = std::exp(scores[t] - maximum);
    const float weight = numerics == Numerics::kBF16 ? round_bf16(e) : e;
    tile_sum += e;
    for (int i = 0; i < query.dim; ++i) running.numerator[i] += weight * tile[t][i];
  }
  running.denominator += tile_sum;
}

}  // namespace

void attend(const HeadQuery& query, std::span<const float* const> rows, Numerics numerics,
            float* out) {
  Running running;
  running.numerator.assign(static_cast<size_t>(query.dim), 0.0f);
  for (size_t begin = 0; begin < rows.size(); begin += kTileRows) {
    add_tile(query, rows.subspan(begin, std::min(kTileRows, rows.size() - begin)), numerics,
             running);
  }
  // Without any row the sink term is infinite and the quotient zero.
  const float denominator = running.denominator + std::exp(query.sink - running.maximum);
  for (int i = 0; i < query.dim; ++i) {
    const float value = running.numerator[i] / denominator;
    out[i] = numerics == Numerics::kBF16 ? round_bf16(value) : value;
  }
}

}  // namespace reference

namespace {

// The rows that one query sees, dequantised, in list order.
class RowList {
 public:
  RowList(int dim) : dim_(dim) {}

  void clear() { values_.clear(); }
  void add_window(const uint8_t* packed) { act_dequant_row(packed, packed + dim_, dim_, extend()); }
  void add_compressed(const uint8_t* packed) {
    fp4_e4m3_dequant_row(packed, packed + dim_ / 2, dim_, extend());
  }
  std::span<const float* const> pointers() {
    pointers_.clear();
    for (size_t at = 0; at < values_.size(); at += static_cast<size_t>(dim_)) {
      pointers_.push_back(values_.data() + at);
    }
    return pointers_;
  }

 private:
  float* extend() {
    values_.resize(values_.size() + static_cast<size_t>(dim_));
    return values_.data() + values_.size() - dim_;
  }

  int dim_;
  std::vector<float> values_;
  std::vector<const float*> pointers_;
};

void list_window(const AttentionArgs& args, const StepRows& step, const KvView& kv, int r,
                 RowList& list) {
  const bool causal = args.mask == AttentionMask::kCausal;
  const int first = step.first_row[r];
  const int32_t segment_start = step.pos[r] - (r - first);
  const int32_t oldest = causal ? step.pos[r] - kv.window + 1 : segment_start - kv.window;
  const int32_t begin = std::max({oldest, step.window_floor[r], 0});
  for (int32_t p = begin; p < segment_start; ++p) {
    list.add_window(kv.ring_row(step.slot[r], args.ring_layer, p));
  }
  const int from = causal ? first + std::max(begin - segment_start, 0) : first;
  const int to = causal ? r + 1 : step.end_row[r];
  for (int row = from; row < to; ++row) {
    list.add_window(args.window.u8() + row * args.window.cols);
  }
}

}  // namespace

void ReferenceBackend::sparse_attention(const AttentionArgs& args, const StepRows& step,
                                        const KvView& kv) {
  const int dim = config_.head_dim;
  const int heads = static_cast<int>(args.q.cols) / dim;
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
  RowList list(dim);
  for (int r = 0; r < step.rows; ++r) {
    list.clear();
    list_window(args, step, kv, r, list);
    if (args.source >= 0) {
      const int32_t* chosen = args.selected.rows + static_cast<int64_t>(r) * args.selected.capacity;
      for (int32_t i = 0; i < args.selected.count[r]; ++i) {
        list.add_compressed(kv.main_row(step.slot[r], args.source, chosen[i]));
      }
    }
    const std::span<const float* const> rows = list.pointers();
    for (int h = 0; h < heads; ++h) {
      const int64_t at = r * args.q.cols + h * dim;
      reference::attend({.q = args.q.f32() + at, .dim = dim, .scale = scale, .sink = args.sinks[h]},
                        rows, numerics_, args.out.f32() + at);
    }
  }
}

}  // namespace peregrine
