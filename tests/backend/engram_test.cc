// The n-gram memory against the recorded module of the engram fixture.
#include <gtest/gtest.h>

#include <cmath>

#include "support/backend_rig.h"

namespace peregrine::test {
namespace {

constexpr int kRows = 24, kColumns = 6, kWidth = 32, kCopies = 4, kDim = 64;

class Engram : public testing::TestWithParam<std::string> {
 protected:
  // Table rows of the first table (layer 1) for the recorded hashes, [token][layer][column].
  std::vector<int64_t> row_ids() const {
    const std::vector<int64_t> all = expected_.longs("masked.hash");
    std::vector<int64_t> ids;
    for (int r = 0; r < kRows; ++r) {
      const auto first = all.begin() + r * 2 * kColumns;
      ids.insert(ids.end(), first, first + kColumns);
    }
    return ids;
  }

  Tensor gather(Rig& rig) const {
    const TensorView& codes = model_.view("layers.1.engram.embed.weight");
    const Tensor out = rig.make_act(kRows, kColumns * kWidth);
    rig->engram_gather({.codes = rig.bytes(model_.bytes("layers.1.engram.embed.weight")),
                        .scales = rig.bytes(model_.bytes("layers.1.engram.embed.scale")),
                        .rows = codes.shape.at(0),
                        .width = kWidth},
                       rig.longs(row_ids()), kColumns, out);
    return out;
  }

  std::vector<float> mixed(Rig& rig, const uint8_t* is_image) const {
    const Tensor kv = rig.make_act(kRows, (kCopies + 1) * kDim);
    rig->linear(gather(rig), rig.weight(model_, "layers.1.engram.wkv.weight"),
                LinearKind::kQuantised, kv);
    std::vector<float> gain = model_.floats("layers.1.engram.q_weight");
    const std::vector<float> k_weight = model_.floats("layers.1.engram.k_weight");
    for (size_t i = 0; i < gain.size(); ++i) gain[i] *= k_weight[i];
    const Tensor x = rig.act(expected_.floats("module.x"), kRows);
    rig->engram_mix({.x = x, .kv = kv, .gain = rig.vector(gain), .is_image = is_image});
    return rig.floats(x);
  }

  const Fixture expected_{data_path("engram/expected.safetensors")};
  const Fixture model_{data_path("engram/model.safetensors")};
};
INSTANTIATE_TEST_SUITE_P(Devices, Engram, testing::ValuesIn(test_devices()),
                         [](const auto& info) { return info.param; });

TEST_P(Engram, GatheredRowsAreTheRecordedOnes) {
  Rig rig(GetParam(), Numerics::kF32);
  expect_same_bits(rig.floats(gather(rig)), expected_.floats("module.rows"));
}

TEST_P(Engram, MixedStreamIsTheRecordedOne) {
  Rig rig(GetParam(), Numerics::kF32);
  expect_near(mixed(rig, rig.bytes(std::vector<uint8_t>(kRows))), expected_.floats("module.y"),
              kF32Tolerance);
}

TEST_P(Engram, ImageRowsPassThrough) {
  Rig rig(GetParam(), Numerics::kF32);
  std::vector<uint8_t> is_image = expected_.bytes("masked.mask");  // true: takes part
  for (uint8_t& flag : is_image) flag = flag != 0 ? 0 : 1;
  expect_near(mixed(rig, rig.bytes(is_image)), expected_.floats("module.y_masked"), kF32Tolerance);
}

// Two dims of stream and key with mean square one, so the dot product with the gain is
// t * sqrt(dim); the value is one, so the stream grows by the gate (engram.md section 5).
TEST_P(Engram, GateIsTheWorkedExample) {
  const auto gate_of = [](float t) {
    ModelConfig config = kernel_config();
    config.hc_mult = 1;
    config.dim = 2;
    Rig rig(GetParam(), Numerics::kF32, config);
    const float gain = t / std::sqrt(2.0f);
    const Tensor x = rig.act({1, 1}, 1);
    rig->engram_mix({.x = x,
                     .kv = rig.act({1, 1, 1, 1}, 1),
                     .gain = rig.vector({gain, gain}),
                     .is_image = rig.bytes(std::vector<uint8_t>{0})});
    return rig.floats(x).front() - 1;
  };
  EXPECT_NEAR(gate_of(0.25f), 0.622459f, 1e-6f);
  EXPECT_NEAR(gate_of(-0.25f), 0.377541f, 1e-6f);
  EXPECT_NEAR(gate_of(4), 0.880797f, 1e-6f);
  EXPECT_NEAR(gate_of(1e-7f), 0.50025f, 1e-6f);
  EXPECT_NEAR(gate_of(-1e-7f), 0.49975f, 1e-6f);
  EXPECT_NEAR(gate_of(0.0f), 0.50025f, 1e-6f);
}

}  // namespace
}  // namespace peregrine::test
