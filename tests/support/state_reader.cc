#include "support/state_reader.h"

#include <algorithm>
#include <limits>

#include "formats/bf16.h"
#include "formats/quantize.h"

namespace peregrine::test {
namespace {

void append(std::vector<float>& all, const std::vector<float>& row) {
  all.insert(all.end(), row.begin(), row.end());
}

float act_value(const Tensor& t, int row, size_t col) {
  const size_t at = static_cast<size_t>(row * t.cols) + col;
  return t.elem == Elem::kBF16 ? bf16_value(static_cast<const uint16_t*>(t.data)[at]) : t.f32()[at];
}

}  // namespace

std::vector<int32_t> list_of(const Selection& selection, int r) {
  const int32_t* row = selection.rows + static_cast<int64_t>(r) * selection.capacity;
  return {row, row + selection.count[r]};
}

std::vector<float> index_scores(const IndexArgs& args, const KvView& kv, Numerics numerics,
                                int index_head_dim, int r, int slot, int64_t pos, int64_t count) {
  const auto round = [&](float v) { return numerics == Numerics::kBF16 ? round_bf16(v) : v; };
  const auto heads = static_cast<size_t>(args.weights.cols);
  const auto dim = static_cast<size_t>(index_head_dim);
  std::vector<float> query(heads * dim), key(dim);
  for (size_t i = 0; i < query.size(); ++i) query[i] = act_value(args.q, r, i);
  fp4_e8m0_in_place(query.data(), static_cast<int64_t>(query.size()));
  const auto weight = [&](size_t h) { return act_value(args.weights, r, h); };
  std::vector<float> scores(static_cast<size_t>(count), -std::numeric_limits<float>::infinity());
  for (int64_t row = 0; row < std::min(count, (pos + 1) / args.ratio); ++row) {
    const uint8_t* codes = kv.index_row(slot, args.source, row);
    fp4_e8m0_dequant_row(codes, codes + dim / 2, index_head_dim, key.data());
    float score = 0;
    for (size_t h = 0; h < heads; ++h) {
      float product = 0;
      for (size_t i = 0; i < dim; ++i) product += query[h * dim + i] * key[i];
      score += round(std::max(round(product), 0.0f) * weight(h));
    }
    scores[static_cast<size_t>(row)] = round(score);
  }
  return scores;
}

std::vector<float> StateReader::window_row(int slot, int ring_layer, int64_t pos) const {
  const uint8_t* codes = kv_.ring_row(slot, ring_layer, pos);
  std::vector<float> row(static_cast<size_t>(config_.head_dim));
  act_dequant_row(codes, codes + config_.head_dim, config_.head_dim, row.data());
  return row;
}

std::vector<float> StateReader::compressed_row(int slot, int source, int64_t row_number) const {
  const uint8_t* codes = kv_.main_row(slot, source, row_number);
  std::vector<float> row(static_cast<size_t>(config_.head_dim));
  fp4_e4m3_dequant_row(codes, codes + config_.head_dim / 2, config_.head_dim, row.data());
  return row;
}

std::vector<float> StateReader::index_key(int slot, int source, int64_t row_number) const {
  const uint8_t* codes = kv_.index_row(slot, source, row_number);
  std::vector<float> row(static_cast<size_t>(config_.index_head_dim));
  fp4_e8m0_dequant_row(codes, codes + config_.index_head_dim / 2, config_.index_head_dim,
                       row.data());
  return row;
}

std::vector<float> StateReader::open_value(int slot, int source, int64_t pos) const {
  const float* tail = kv_.tail(slot, source, pos);
  return {tail, tail + config_.head_dim};
}

std::vector<float> StateReader::open_gate(int slot, int source, int64_t pos) const {
  const float* tail = kv_.tail(slot, source, pos) + config_.head_dim;
  return {tail, tail + config_.head_dim};
}

std::vector<float> StateReader::ring(int slot, int ring_layer, int64_t tokens) const {
  std::vector<float> all;
  for (int64_t i = 0; i < config_.window_size; ++i) {
    // The latest position below `tokens` in this recorded slot; never written: zeros.
    const int64_t pos = tokens - 1 - (tokens - 1 - i + config_.window_size) % config_.window_size;
    append(all, pos < 0 || i >= tokens
                    ? std::vector<float>(static_cast<size_t>(config_.head_dim), 0.0f)
                    : window_row(slot, ring_layer, pos));
  }
  return all;
}

std::vector<float> StateReader::compressed(int slot, int source, int64_t rows) const {
  std::vector<float> all;
  for (int64_t row = 0; row < rows; ++row) append(all, compressed_row(slot, source, row));
  return all;
}

std::vector<float> StateReader::index_keys(int slot, int source, int64_t rows) const {
  std::vector<float> all;
  for (int64_t row = 0; row < rows; ++row) append(all, index_key(slot, source, row));
  return all;
}

}  // namespace peregrine::test
