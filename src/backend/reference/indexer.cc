// Scores of index keys, candidate blocks and the selection (spec: model.md 5.6, 5.7). Scratch
// memory is one list of scores at a time: as long as the longest list a single row can see.
#include <algorithm>
#include <limits>
#include <vector>

#include "backend/reference/reference_backend.h"
#include "backend/reference/selection.h"
#include "formats/quantize.h"

namespace peregrine {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

void write_list(const Selection& selection, int64_t r, const std::vector<int32_t>& list) {
  std::copy(list.begin(), list.end(), selection.rows + r * selection.capacity);
  selection.count[r] = static_cast<int32_t>(list.size());
}

// One query row against keys: sum over heads of relu(q_h . key) * weight_h. `round` is applied to
// the product with the key, to the weighted product and to the sum.
template <typename Round>
float index_score(const float* q, const float* weights, const float* key, int heads, int dim,
                  Round round) {
  float score = 0;
  for (int h = 0; h < heads; ++h) {
    float product = 0;
    for (int i = 0; i < dim; ++i) product += q[h * dim + i] * key[i];
    product = round(product);
    if (product < 0) product = 0;  // keeps a NaN
    score += round(product * weights[h]);
  }
  return round(score);
}

}  // namespace

void ReferenceBackend::index_select(const IndexArgs& args, const StepRows& step, const KvView& kv) {
  const int heads = static_cast<int>(args.weights.cols);
  const int dim = static_cast<int>(args.q.cols) / heads;
  const int block_rows = config_.candidate_block_size;
  std::vector<float> query(static_cast<size_t>(args.q.cols));
  std::vector<float> key(static_cast<size_t>(dim));
  std::vector<float> scores;
  for (int64_t r = 0; r < step.rows; ++r) {
    std::copy_n(args.q.f32() + r * args.q.cols, args.q.cols, query.begin());
    fp4_e8m0_in_place(query.data(), args.q.cols);
    const float* weights = args.weights.f32() + r * heads;
    const auto score_row = [&](int32_t row) {
      const uint8_t* codes = kv.index_row(step.slot[r], args.source, row);
      fp4_e8m0_dequant_row(codes, codes + dim / 2, dim, key.data());
      return index_score(query.data(), weights, key.data(), heads, dim,
                         [this](float value) { return round(value); });
    };

    const int32_t len = (step.pos[r] + 1) / args.ratio;
    scores.assign(static_cast<size_t>(len), kMinusInfinity);
    if (args.mode == IndexMode::kReindex) {
      // Rows outside the candidates keep -inf. When the candidates are fewer than top-k, the rule
      // for equal scores fills the list with the lowest of the other rows.
      const int32_t* blocks = args.candidates.rows + r * args.candidates.capacity;
      for (int32_t c = 0; c < args.candidates.count[r]; ++c) {
        const int32_t end = std::min(len, (blocks[c] + 1) * block_rows);
        for (int32_t row = blocks[c] * block_rows; row < end; ++row) scores[row] = score_row(row);
      }
    } else {
      for (int32_t row = 0; row < len; ++row) scores[row] = score_row(row);
    }
    if (args.mode == IndexMode::kPublish) {
      write_list(args.candidates, r,
                 reference::candidate_blocks(scores, block_rows, config_.candidate_topk_blocks));
    }
    write_list(args.selected, r, reference::best_indices(scores, config_.index_topk));
  }
}

}  // namespace peregrine
