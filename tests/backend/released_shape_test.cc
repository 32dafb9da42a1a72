// Operations at the widths of the released model, where backends take other paths than at the small
// shapes of the fixtures: against the reference backend, and long steps against single rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/backend_rig.h"

namespace peregrine::test {
namespace {

ModelConfig released_config() {
  ModelConfig config = kernel_config();
  config.dim = 5120;
  config.n_heads = 40;  // not a multiple of what a block of heads holds
  config.head_dim = 512;
  config.rope_head_dim = 64;
  config.window_size = 128;
  config.index_n_heads = 32;
  config.index_head_dim = 128;
  config.index_topk = 512;
  config.candidate_topk_blocks = 300;
  config.candidate_block_size = 8;
  return config;
}

class ReleasedShape : public testing::TestWithParam<std::string> {
 protected:
  const ModelConfig config_ = released_config();
  std::mt19937 random_{77};
};
INSTANTIATE_TEST_SUITE_P(Devices, ReleasedShape, testing::ValuesIn(test_devices()),
                         [](const auto& info) { return info.param; });

// ---- attention --------------------------------------------------------------------------------

constexpr int kPast = 700, kNew = 32;

// One sequence of kPast stored rows, and kNew further ones.
struct AttentionInput {
  std::vector<float> past, rows, q, sinks;
};

// Outputs of rows begin .. end - 1 of the new ones, in one step; row r selects the compressed rows
// r, r + 1, .. of the past, 512 of them.
std::vector<float> attend(const std::string& device, const ModelConfig& config,
                          const AttentionInput& input, int begin, int end) {
  const int64_t dim = config.head_dim;
  Rig rig(device, Numerics::kBF16, config);
  const KvView kv = make_kv(rig, config, {.max_rows = 1024, .rows_per_page = 16});
  const auto width = static_cast<int64_t>(kv.window_row_bytes);
  const auto pack = [&](const std::vector<float>& values) {
    const auto rows = static_cast<int64_t>(values.size()) / dim;
    const Tensor packed = rig.make(rows, width, Elem::kU8);
    rig->pack_window(rig.act(values, rows), packed);
    return packed;
  };
  const auto store = [&](const std::vector<float>& values, int pos) {
    const auto rows = static_cast<int>(static_cast<int64_t>(values.size()) / dim);
    const StepRows step = rig.step(Step({{.pos = pos, .rows = rows}}));
    rig->store_window(pack(values), step, 0, kv);
    rig->store_compressed(rig.act(values, rows), step, 0, 1, kv);
  };
  store(input.past, 0);
  if (begin > 0) store({input.rows.begin(), input.rows.begin() + begin * dim}, kPast);

  const int count = end - begin;
  std::vector<int32_t> lists;
  for (int r = begin; r < end; ++r) {
    for (int i = 0; i < config.index_topk; ++i) lists.push_back(r + i);
  }
  const std::vector<int32_t> counts(static_cast<size_t>(count), config.index_topk);
  const auto part = [&](const std::vector<float>& all, int64_t columns) {
    return std::vector<float>(all.begin() + begin * columns, all.begin() + end * columns);
  };
  const Tensor out = rig.make_act(count, config.n_heads * dim);
  rig->sparse_attention(
      {.q = rig.act(part(input.q, config.n_heads * dim), count),
       .window = pack(part(input.rows, dim)),
       .source = 0,
       .selected = {rig.ints(lists, count).i32(), rig.ints(counts, 1).i32(), config.index_topk},
       .sinks = rig.vector(input.sinks),
       .out = out},
      rig.step(Step({{.pos = kPast + begin, .rows = count}})), kv);
  return rig.floats(out);
}

TEST_P(ReleasedShape, Attention) {
  const size_t dim = static_cast<size_t>(config_.head_dim);
  const auto heads = static_cast<size_t>(config_.n_heads);
  const AttentionInput input{.past = random_bf16(kPast * dim, random_),
                             .rows = random_bf16(kNew * dim, random_),
                             .q = random_bf16(kNew * heads * dim, random_),
                             .sinks = random_values(heads, random_)};
  const std::vector<float> all = attend(GetParam(), config_, input, 0, kNew);

  const auto row_size = static_cast<int64_t>(heads * dim);
  for (const int rows : {11, 16}) {  // between few and many
    SCOPED_TRACE(rows);
    expect_same_bits(attend(GetParam(), config_, input, 0, rows),
                     {all.begin(), all.begin() + rows * row_size});
  }
  for (const int row : {0, 1, 31}) {
    SCOPED_TRACE(row);
    const std::vector<float> alone = attend(GetParam(), config_, input, row, row + 1);
    const auto first = all.begin() + row * row_size;
    expect_same_bits(alone, {first, first + row_size});
    const std::vector<float> expected = attend("reference", config_, input, row, row + 1);
    float largest = 0;
    for (const float value : input.past) largest = std::max(largest, std::fabs(value));
    for (size_t i = 0; i < alone.size(); ++i) {
      // The order of sums may turn the rounding of a probability and of the result.
      ASSERT_NEAR(alone[i], expected[i], (largest + std::fabs(expected[i])) / 256) << i;
    }
  }
}

// ---- indexer ----------------------------------------------------------------------------------

// Weights and queries are multiples of coarse steps, so that every sum is exact and backends agree
// on all scores, of which many are equal.
TEST_P(ReleasedShape, LongListsAreSelectedAsByTheReference) {
  constexpr int kStored = 20000, kRows = 6;
  const auto heads = static_cast<size_t>(config_.index_n_heads);
  const auto dim = static_cast<size_t>(config_.index_head_dim);
  const std::vector<float> keys = random_bf16(kStored * dim, random_);
  const std::vector<float> q = random_bf16(kRows * heads * dim, random_);
  std::vector<float> weights(kRows * heads);
  for (float& weight : weights) weight = (static_cast<float>(random_() % 8) - 2) / 16;

  // Selected rows, published blocks, and rows selected inside them.
  const auto select = [&](const std::string& device) {
    Rig rig(device, Numerics::kBF16, config_);
    const KvView kv = make_kv(rig, config_, {.slots = 1, .max_rows = kStored, .rows_per_page = 64});
    rig->store_index_keys(rig.act(keys, kStored), rig.step(Step({{.pos = 0, .rows = kStored}})), 0,
                          1, kv);
    const StepRows step = rig.step(Step({{.pos = kStored - kRows, .rows = kRows}}));
    IndexArgs args{.q = rig.act(q, kRows),
                   .weights = rig.act(weights, kRows),
                   .mode = IndexMode::kPublish,
                   .selected = rig.selection(kRows, config_.index_topk),
                   .candidates = rig.selection(kRows, config_.candidate_topk_blocks)};
    rig->index_select(args, step, kv);
    std::vector<std::vector<std::vector<int32_t>>> lists = {rig.lists(args.selected, kRows),
                                                            rig.lists(args.candidates, kRows)};
    args.mode = IndexMode::kReindex;
    rig->scale(args.weights, -0.5f);
    rig->index_select(args, step, kv);
    lists.push_back(rig.lists(args.selected, kRows));
    return lists;
  };
  const auto expected = select("reference");
  const auto actual = select(GetParam());
  for (size_t kind = 0; kind < expected.size(); ++kind) {
    for (size_t row = 0; row < kRows; ++row)
      EXPECT_EQ(actual[kind][row], expected[kind][row]) << kind << ' ' << row;
  }
}

// ---- rows of the stream -----------------------------------------------------------------------

TEST_P(ReleasedShape, StreamOperationsGiveTheBitsOfSingleRows) {
  constexpr int kRows = 21;
  const auto dim = static_cast<size_t>(config_.dim);
  const std::vector<float> x = random_bf16(kRows * 4 * dim, random_);
  const std::vector<float> fn = random_values(24 * 4 * dim, random_, 0.02f);
  const std::vector<float> base = random_values(24, random_);
  const std::vector<float> norm = random_bf16(dim, random_);
  const auto run = [&](const std::string& device, int begin, int end) {
    Rig rig(device, Numerics::kBF16, config_);
    const int64_t rows = end - begin;
    const Tensor stream = rig.act({x.begin() + begin * static_cast<int64_t>(4 * dim),
                                   x.begin() + end * static_cast<int64_t>(4 * dim)},
                                  rows);
    const HcMix mix{rig.make(rows, 4), rig.make(rows, 4), rig.make(rows, 16)};
    rig->hc_mixes(
        stream, {.fn = rig.vector(fn), .base = rig.vector(base), .scale = rig.vector({1, 0.5f, 2})},
        mix);
    const Tensor u = rig.make_act(rows, config_.dim);
    rig->hc_collapse_norm(stream, mix.pre, rig.vector(norm), u);
    rig->hc_expand(u, mix.post, mix.comb, stream);
    const std::vector<float> streams = rig.floats(stream), mixes = rig.floats(mix.comb);
    std::vector<float> result;
    for (int64_t r = 0; r < rows; ++r) {
      result.insert(result.end(), mixes.begin() + r * 16, mixes.begin() + (r + 1) * 16);
      const auto first = streams.begin() + r * static_cast<int64_t>(4 * dim);
      result.insert(result.end(), first, first + static_cast<int64_t>(4 * dim));
    }
    return result;
  };
  const std::vector<float> all = run(GetParam(), 0, kRows);
  const auto width = static_cast<int64_t>(4 * dim + 16);
  for (const int row : {0, 8, 20}) {
    SCOPED_TRACE(row);
    const std::vector<float> alone = run(GetParam(), row, row + 1);
    expect_same_bits(alone, {all.begin() + row * width, all.begin() + (row + 1) * width});
    const std::vector<float> expected = run("reference", row, row + 1);
    for (size_t i = 0; i < alone.size(); ++i) {
      // Coefficients are f32; the stream was rounded to bf16 twice.
      const float tolerance = i < 16 ? kF32Tolerance : std::fabs(expected[i]) / 64 + 0.02f;
      ASSERT_NEAR(alone[i], expected[i], tolerance) << i;
    }
  }
}

}  // namespace
}  // namespace peregrine::test
