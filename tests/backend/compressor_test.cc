// Writers of sequence state: compressors against the recorded latents, rings, pages and tails.
#include <gtest/gtest.h>

#include <algorithm>

#include "formats/quantize.h"
#include "support/backend_rig.h"

namespace peregrine::test {
namespace {

class Compressor : public testing::TestWithParam<std::string> {
 protected:
  struct Weights {
    Weight wkv = {}, wgate = {};
    const float* norm = nullptr;
  };

  // Latents of consecutive rows from `pos`: [rows, 64], zeros where no group completes (ratio 2).
  static std::vector<float> latents(Rig& rig, const Weights& weights, const KvView& kv, int ratio,
                                    const std::vector<float>& x, int pos, int rows) {
    const auto first = x.begin() + pos * 64;
    const Tensor u = rig.act({first, first + rows * 64}, rows);
    const Tensor latent = rig.make_act(rows, 64);
    if (ratio == 1) {
      rig->linear(u, weights.wkv, LinearKind::kPlain, latent);
    } else {
      const Tensor a = rig.make(rows, 64);
      const Tensor g = rig.make(rows, 64);
      rig->linear(u, weights.wkv, LinearKind::kFull, a);
      rig->linear(u, weights.wgate, LinearKind::kFull, g);
      rig->compress_pairs(a, g, rig.step(Step({{.pos = pos, .rows = rows}})), 0, kv, latent);
    }
    rig->rms_norm(latent, weights.norm, latent);
    return rig.floats(latent);
  }

  const Fixture data_{data_path("kernels/expected.safetensors")};
};
INSTANTIATE_TEST_SUITE_P(Devices, Compressor, testing::ValuesIn(test_devices()),
                         [](const auto& info) { return info.param; });

TEST_P(Compressor, PromptThenStepsGiveTheRecordedLatents) {
  for (const int ratio : {1, 2}) {
    for (const int prompt : {7, 8, 2}) {
      const std::string name =
          "compressor.r" + std::to_string(ratio) + ".p" + std::to_string(prompt) + ".";
      SCOPED_TRACE(name);
      Rig rig(GetParam(), Numerics::kF32);
      const KvView kv = make_kv(rig, kernel_config(), {});
      Weights weights{.wkv = rig.weight(data_, name + "wkv"),
                      .norm = rig.vector(data_.floats(name + "norm"))};
      if (ratio == 2) weights.wgate = rig.weight(data_, name + "wgate");
      const std::vector<float> x = data_.floats(name + "x");

      const auto completed = [&](const std::vector<float>& all, int pos) {
        std::vector<float> groups;
        for (size_t r = 0; r < all.size() / 64; ++r) {
          if ((pos + static_cast<int>(r) + 1) % ratio != 0) continue;
          groups.insert(groups.end(), all.begin() + r * 64, all.begin() + (r + 1) * 64);
        }
        return groups;
      };
      const std::vector<float> first = latents(rig, weights, kv, ratio, x, 0, prompt);
      expect_near(completed(first, 0), data_.floats(name + "prefill"), kF32Tolerance);
      if (ratio == 2 && prompt % 2 == 1) {
        std::vector<float> half = data_.floats(name + "state_kv");
        half.resize(64);
        expect_near(rig.floats({kv.tail(0, 0, prompt - 1), 1, 64, Elem::kF32}), half,
                    kF32Tolerance);
      }

      std::vector<float> later;
      std::vector<int32_t> positions;
      for (int p = prompt; p < prompt + 5; ++p) {
        const std::vector<float> one = completed(latents(rig, weights, kv, ratio, x, p, 1), p);
        later.insert(later.end(), one.begin(), one.end());
        if (!one.empty()) positions.push_back(p);
      }
      EXPECT_EQ(positions, data_.ints(name + "step_positions"));
      expect_near(later, data_.floats(name + "step_latents"), kF32Tolerance);
    }
  }
}

TEST_P(Compressor, RowsThatCompleteNoGroupGiveZeros) {
  Rig rig(GetParam(), Numerics::kBF16);
  std::mt19937 random(2);
  const KvView kv = make_kv(rig, kernel_config(), {});
  const Tensor latent = rig.act(std::vector<float>(3 * 64, 9.0f), 3);
  rig->compress_pairs(rig.full(random_values(3 * 64, random), 3),
                      rig.full(random_values(3 * 64, random), 3),
                      rig.step(Step({{.pos = 4, .rows = 3}})), 0, kv, latent);
  const std::vector<float> values = rig.floats(latent);
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(values[i], 0) << i;
    EXPECT_NE(values[64 + i], 0) << i;
    EXPECT_EQ(values[128 + i], 0) << i;
  }
}

// The even half of a row that starts a segment is the one that an earlier step stored for its own
// sequence, even when the row before belongs to another sequence.
TEST_P(Compressor, HalvesOfDifferentSequencesDoNotMeet) {
  std::mt19937 random(6);
  const std::vector<float> a = random_values(4 * 64, random);
  const std::vector<float> g = random_values(4 * 64, random);
  const auto run = [&](Rig& rig, const KvView& kv, const std::vector<Segment>& segments,
                       const std::vector<int>& rows) {
    std::vector<float> a_rows, g_rows;
    for (const int row : rows) {
      a_rows.insert(a_rows.end(), a.begin() + row * 64, a.begin() + (row + 1) * 64);
      g_rows.insert(g_rows.end(), g.begin() + row * 64, g.begin() + (row + 1) * 64);
    }
    const auto n = static_cast<int64_t>(rows.size());
    const Tensor latent = rig.make_act(n, 64);
    rig->compress_pairs(rig.full(a_rows, n), rig.full(g_rows, n), rig.step(Step(segments)), 0, kv,
                        latent);
    std::vector<float> all = rig.floats(latent);
    return std::vector<float>(all.end() - 64, all.end());
  };
  Rig rig(GetParam(), Numerics::kBF16);
  const KvView apart = make_kv(rig, kernel_config(), {});
  run(rig, apart, {{.slot = 1, .pos = 0, .rows = 1}}, {0});
  const std::vector<float> mixed =
      run(rig, apart, {{.slot = 0, .pos = 2, .rows = 1}, {.slot = 1, .pos = 1, .rows = 1}}, {2, 1});
  const KvView together = make_kv(rig, kernel_config(), {});
  expect_same_bits(mixed, run(rig, together, {{.slot = 1, .pos = 0, .rows = 2}}, {0, 1}));
}

TEST_P(Compressor, RowsAreStoredInTheirPagesAsPackedCodes) {
  for (const int ratio : {1, 2}) {
    SCOPED_TRACE(ratio);
    const ModelConfig config = kernel_config();
    Rig rig(GetParam(), Numerics::kBF16, config);
    const KvView kv = make_kv(rig, config, {.rows_per_page = 4});
    std::mt19937 random(8);
    const std::vector<float> rows = random_bf16(12 * 64, random);
    const StepRows step = rig.step(Step({{.slot = 1, .pos = 0, .rows = 12}}));
    rig->store_compressed(rig.act(rows, 12), step, 0, ratio, kv);
    rig->store_index_keys(rig.act(rows, 12), step, 0, ratio, kv);
    for (int group = 0; group < 12 / ratio; ++group) {
      const float* row = rows.data() + (group * ratio + ratio - 1) * 64;
      std::vector<uint8_t> main(kv.main_row_bytes), key(kv.index_row_bytes);
      fp4_e4m3_row(row, 64, main.data(), main.data() + 32);
      fp4_e8m0_row(row, 64, key.data(), key.data() + 32);
      EXPECT_EQ(rig.bytes(Tensor{kv.main_row(1, 0, group), 1, static_cast<int64_t>(main.size()),
                                 Elem::kU8}),
                main);
      EXPECT_EQ(rig.bytes(Tensor{kv.index_row(1, 0, group), 1, static_cast<int64_t>(key.size()),
                                 Elem::kU8}),
                key);
    }
  }
}

TEST_P(Compressor, ReplayedRowsLeaveSharedPagesAlone) {
  const ModelConfig config = kernel_config();
  Rig rig(GetParam(), Numerics::kBF16, config);
  const KvView kv = make_kv(rig, config, {});
  std::mt19937 random(9);
  const Tensor rows = rig.act(random_bf16(4 * 64, random), 4);
  const StepRows step = rig.step(Step({{.pos = 0, .rows = 4, .writes_kv = false}}));
  rig->store_compressed(rows, step, 0, 1, kv);
  rig->store_index_keys(rows, step, 0, 1, kv);
  const auto page = static_cast<int64_t>(kv.page_bytes);
  EXPECT_EQ(rig.bytes(Tensor{kv.page_of(0, 0, 0), 1, page, Elem::kU8}),
            std::vector<uint8_t>(kv.page_bytes));
}

TEST_P(Compressor, RingHoldsTheLastRowsOfALongSegment) {
  const ModelConfig config = kernel_config();
  Rig rig(GetParam(), Numerics::kBF16, config);
  const KvView kv = make_kv(rig, config, {.ring_rows = 10});
  std::mt19937 random(10);
  constexpr int kRows = 25, kFirst = 3;
  const std::vector<float> rows = random_bf16(kRows * 64, random);
  const Tensor packed = rig.make(kRows, static_cast<int64_t>(kv.window_row_bytes), Elem::kU8);
  rig->pack_window(rig.act(rows, kRows), packed);
  rig->store_window(packed, rig.step(Step({{.slot = 1, .pos = kFirst, .rows = kRows}})), 0, kv);
  const auto width = static_cast<int64_t>(kv.window_row_bytes);
  for (int r = kRows - 10; r < kRows; ++r) {
    std::vector<uint8_t> expected(kv.window_row_bytes);
    act_quant_row(rows.data() + r * 64, 64, expected.data(), expected.data() + 64);
    EXPECT_EQ(rig.bytes(Tensor{kv.ring_row(1, 0, kFirst + r), 1, width, Elem::kU8}), expected);
  }
  EXPECT_EQ(rig.bytes(Tensor{kv.ring_row(0, 0, 0), 10, width, Elem::kU8}),
            std::vector<uint8_t>(10 * kv.window_row_bytes))
      << "another slot was touched";
}

}  // namespace
}  // namespace peregrine::test
