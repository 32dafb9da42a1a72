// The indexer against recorded scores, candidates and selections (spec: model.md 5.6, 5.7).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "backend/reference/selection.h"
#include "formats/quantize.h"
#include "support/backend_rig.h"

namespace peregrine::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kIndexOffset = 1000;  // added to every recorded row number
constexpr int kRows = 27, kHeads = 8, kDim = 64;

// Rotary frequencies as in rope.yarn: dim 32, original length 32, theta 4e4, factor 4, betas 32, 1.
std::vector<float> yarn_frequencies() {
  const auto bound = [](double turns) {
    return 32 * std::log(32 / (2 * std::numbers::pi * turns)) / (2 * std::log(40000.0));
  };
  const double low = std::max(std::floor(bound(32)), 0.0);
  const double high = std::min(std::ceil(bound(1)), 31.0);
  std::vector<float> table;
  for (int i = 0; i < 16; ++i) {
    const double frequency = std::pow(40000.0, -2.0 * i / 32);
    const double ramp = std::clamp((i - low) / std::max(high - low, 0.001), 0.0, 1.0);
    table.push_back(static_cast<float>(frequency / 4 * ramp + frequency * (1 - ramp)));
  }
  return table;
}

class Indexer : public testing::TestWithParam<std::string> {
 protected:
  // Index keys of the recorded latents, stored as one step of all rows.
  void store_keys(Rig& rig, const std::string& name, int ratio, const KvView& kv) const {
    const std::vector<float> latents = data_.floats(name + "latents");
    std::vector<float> spread(kRows * kDim, 0.0f);
    for (int group = 0; group < kRows / ratio; ++group) {
      const auto row = (group + 1) * ratio - 1;
      std::copy_n(latents.begin() + group * kDim, kDim, spread.begin() + row * kDim);
    }
    const Tensor keys = rig.make_act(kRows, kDim);
    rig->linear(rig.act(spread, kRows), rig.weight(data_, name + "w0.wk.weight"),
                LinearKind::kPlain, keys);
    rig->rms_norm(keys, rig.vector(data_.floats(name + "w0.k_norm.weight")), keys);
    const StepRows step = rig.step(Step({{.pos = 0, .rows = kRows}}));
    rig->rope(
        keys, 1, step,
        {.frequencies = rig.vector(yarn_frequencies()), .rope_dim = 32, .position_step = ratio});
    rig->store_index_keys(keys, step, 0, ratio, kv);
  }

  // Rotated queries and scaled head weights of rows pos .. pos + rows - 1 of one index layer.
  IndexArgs query(Rig& rig, const std::string& name, const std::string& layer, int pos,
                  int rows) const {
    const auto part = [&](const std::string& tensor, int width) {
      const std::vector<float> all = data_.floats(name + tensor + layer);
      return rig.act({all.begin() + pos * width, all.begin() + (pos + rows) * width}, rows);
    };
    IndexArgs args;
    args.q = rig.make_act(rows, kHeads * kDim);
    args.weights = rig.make_act(rows, kHeads);
    rig->linear(part("qr", 32), rig.weight(data_, name + "w" + layer + ".wq_b.weight"),
                LinearKind::kQuantised, args.q);
    rig->rope(args.q, kHeads, rig.step(Step({{.pos = pos, .rows = rows}})),
              {.frequencies = rig.vector(yarn_frequencies()), .rope_dim = 32});
    rig->linear(part("x", 64), rig.weight(data_, name + "w" + layer + ".weights_proj.weight"),
                LinearKind::kPlain, args.weights);
    rig->scale(args.weights, 1 / std::sqrt(static_cast<float>(kHeads * kDim)));
    args.selected = rig.selection(rows, 6);
    return args;
  }

  std::vector<std::vector<int32_t>> recorded_lists(const std::string& name) const {
    const std::vector<int32_t> all = data_.ints(name);
    std::vector<std::vector<int32_t>> lists(all.size() / 6);
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i] >= 0) lists[i / 6].push_back(all[i] - kIndexOffset);
    }
    return lists;
  }

  const Fixture data_{data_path("kernels/expected.safetensors")};
};
INSTANTIATE_TEST_SUITE_P(Devices, Indexer, testing::ValuesIn(test_devices()),
                         [](const auto& info) { return info.param; });

TEST_P(Indexer, StoredKeysAreTheRecordedCache) {
  for (const int ratio : {1, 2}) {
    const std::string name = ratio == 2 ? "indexer.r2." : "indexer.cand.";
    SCOPED_TRACE(name);
    Rig rig(GetParam(), Numerics::kF32);
    const KvView kv = make_kv(rig, kernel_config(), {});
    store_keys(rig, name, ratio, kv);
    std::vector<float> keys;
    for (int group = 0; group < kRows / ratio; ++group) {
      const std::vector<uint8_t> row = rig.bytes(Tensor{
          kv.index_row(0, 0, group), 1, static_cast<int64_t>(kv.index_row_bytes), Elem::kU8});
      keys.resize(keys.size() + kDim);
      fp4_e8m0_dequant_row(row.data(), row.data() + kDim / 2, kDim, keys.data() + group * kDim);
    }
    expect_near(keys, data_.floats(name + "k_cache"), 0);
  }
}

TEST_P(Indexer, SelectionsAreTheRecordedOnes) {
  for (const int ratio : {1, 2}) {
    const bool candidates = ratio == 1;
    const std::string name = candidates ? "indexer.cand." : "indexer.r2.";
    Rig rig(GetParam(), Numerics::kF32);
    const KvView kv = make_kv(rig, kernel_config(), {});
    store_keys(rig, name, ratio, kv);

    // Both layers over rows pos .. pos + rows - 1; layer 1 works inside layer 0's candidates.
    const auto select = [&](int pos, int rows) {
      std::vector<std::vector<std::vector<int32_t>>> selected;
      const StepRows step = rig.step(Step({{.pos = pos, .rows = rows}}));
      const Selection blocks = rig.selection(rows, 3);
      for (const std::string layer : {"0", "1"}) {
        IndexArgs args = query(rig, name, layer, pos, rows);
        args.ratio = ratio;
        args.candidates = blocks;
        if (candidates) args.mode = layer == "0" ? IndexMode::kPublish : IndexMode::kReindex;
        rig->index_select(args, step, kv);
        selected.push_back(rig.lists(args.selected, rows));
      }
      return selected;
    };

    const int prompt = data_.ints(name + "n_prefill").front();
    const auto first = select(0, prompt);
    EXPECT_EQ(first[0], recorded_lists(name + "prefill.0.idx"));
    EXPECT_EQ(first[1], recorded_lists(name + "prefill.1.idx"));
    const auto steps_0 = recorded_lists(name + "steps.0.idx");
    const auto steps_1 = recorded_lists(name + "steps.1.idx");
    for (int i = 0; i < 6; ++i) {
      SCOPED_TRACE(i);
      const auto later = select(prompt + i, 1);
      EXPECT_EQ(later[0].front(), steps_0[i]);
      EXPECT_EQ(later[1].front(), steps_1[i]);
    }
  }
}

TEST_P(Indexer, PublishedBlocksAreTheRecordedCandidates) {
  const std::string name = "indexer.cand.";
  Rig rig(GetParam(), Numerics::kF32);
  const KvView kv = make_kv(rig, kernel_config(), {});
  store_keys(rig, name, 1, kv);
  IndexArgs args = query(rig, name, "0", 0, 21);
  args.mode = IndexMode::kPublish;
  args.candidates = rig.selection(21, 3);
  rig->index_select(args, rig.step(Step({{.pos = 0, .rows = 21}})), kv);
  const auto blocks = rig.lists(args.candidates, 21);
  const std::vector<int32_t> mask = data_.ints(name + "prefill.candidates");
  for (int p = 0; p < 21; ++p) {
    std::vector<int32_t> rows(21, 0);
    for (const int32_t block : blocks[p]) {
      for (int row = block * 3; row < std::min(block * 3 + 3, 21); ++row) rows[row] = 1;
    }
    // A block that holds the newest visible row may reach beyond it; those rows are not visible.
    for (int row = 0; row <= p; ++row) EXPECT_EQ(rows[row], mask[p * 21 + row]) << p << ' ' << row;
  }
}

// All scores are equal, so every choice is a tie: the lowest rows win, and outside the candidates
// the lowest of the rest fill the list.
TEST_P(Indexer, TiesGoToLowerRowsAndShortCandidatesAreFilledUp) {
  ModelConfig config = kernel_config();
  config.candidate_topk_blocks = 1;
  Rig rig(GetParam(), Numerics::kBF16, config);
  const KvView kv = make_kv(rig, config, {});
  const StepRows step = rig.step(Step({{.pos = 10, .rows = 1}}));
  IndexArgs args{.q = rig.make_act(1, kHeads * kDim),
                 .weights = rig.make_act(1, kHeads),
                 .mode = IndexMode::kPublish,
                 .selected = rig.selection(1, 6),
                 .candidates = rig.selection(1, 1)};
  rig->index_select(args, step, kv);
  EXPECT_EQ(rig.lists(args.selected, 1).front(), (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(rig.lists(args.candidates, 1).front(), (std::vector<int32_t>{3}));
  args.mode = IndexMode::kReindex;
  rig->index_select(args, step, kv);
  EXPECT_EQ(rig.lists(args.selected, 1).front(), (std::vector<int32_t>{0, 1, 2, 3, 9, 10}));
}

TEST_P(Indexer, NothingVisibleSelectsNothing) {
  Rig rig(GetParam(), Numerics::kBF16);
  const KvView kv = make_kv(rig, kernel_config(), {});
  IndexArgs args{.q = rig.make_act(1, kHeads * kDim),
                 .weights = rig.make_act(1, kHeads),
                 .ratio = 2,
                 .mode = IndexMode::kPublish,
                 .selected = rig.selection(1, 6),
                 .candidates = rig.selection(1, 3)};
  rig->index_select(args, rig.step(Step({{.pos = 0, .rows = 1}})), kv);
  EXPECT_TRUE(rig.lists(args.selected, 1).front().empty());
  EXPECT_TRUE(rig.lists(args.candidates, 1).front().empty());
}

TEST(Selection, NanCountsAsTheLowestScore) {
  std::vector<float> scores = {std::nanf(""), 1, std::nanf(""), -kInfinity, 2};
  EXPECT_EQ(reference::best_indices(scores, 2), (std::vector<int32_t>{1, 4}));
  EXPECT_EQ(reference::best_indices(scores, 3), (std::vector<int32_t>{0, 1, 4}));
  EXPECT_EQ(reference::best_indices(scores, 9), (std::vector<int32_t>{0, 1, 2, 3, 4}));
}

TEST(Selection, CandidateBlocksAreTheRecordedOnes) {
  const Fixture data(data_path("kernels/expected.safetensors"));
  // mask.TxB: T blocks of B rows, over the first `len` scores.
  const auto check = [&](const std::string& mask_name, size_t mask_row, size_t width,
                         const float* logits, int len, int blocks, int block_rows) {
    SCOPED_TRACE(mask_name + " row " + std::to_string(mask_row));
    std::vector<int32_t> rows(width, 0);
    for (const int32_t block :
         reference::candidate_blocks({logits, static_cast<size_t>(len)}, block_rows, blocks)) {
      for (int row = block * block_rows; row < std::min(len, (block + 1) * block_rows); ++row) {
        rows[row] = 1;
      }
    }
    const std::vector<int32_t> mask = data.ints(mask_name);
    for (int row = 0; row < len; ++row) EXPECT_EQ(rows[row], mask[mask_row * width + row]) << row;
  };
  const std::vector<float> logits = data.floats("cand_blocks.prefill.logits");
  const std::vector<int32_t> lens = data.ints("cand_blocks.prefill.lens");
  const std::vector<std::pair<int, int>> sizes = {{1, 8}, {2, 4}, {3, 3}, {9, 4}};
  for (const auto& [blocks, rows] : sizes) {
    const std::string size = std::to_string(blocks) + "x" + std::to_string(rows);
    for (size_t r = 0; r < lens.size(); ++r) {
      check("cand_blocks.prefill.mask." + size, r, 22, logits.data() + r * 22, lens[r], blocks,
            rows);
    }
  }
  for (const int len : {1, 4, 13, 22}) {
    const std::string n = std::to_string(len);
    const std::vector<float> scores = data.floats("cand_blocks.decode.logits." + n);
    check("cand_blocks.decode.mask." + n + ".2x4", 0, scores.size(), scores.data(), len, 2, 4);
    check("cand_blocks.decode.mask." + n + ".3x3", 0, scores.size(), scores.data(), len, 3, 3);
  }
}

}  // namespace
}  // namespace peregrine::test
