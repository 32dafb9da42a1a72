// Hyper-connections against the recorded coefficients and the worked example of model.md 5.3.
#include "backend/reference/hyper_connections.h"

#include <gtest/gtest.h>

#include "support/backend_rig.h"

namespace peregrine::test {
namespace {

constexpr reference::HcShape kShape{.copies = 4, .sinkhorn_iterations = 20, .eps = 1e-6f};

struct Coefficients {
  std::vector<float> pre, post, comb;
};

Coefficients coefficients_of(const reference::HcShape& shape, const std::vector<float>& mixes,
                             const std::vector<float>& scale, const std::vector<float>& base) {
  const size_t n = static_cast<size_t>(shape.copies);
  const size_t rows = mixes.size() / base.size();
  Coefficients out{std::vector<float>(rows * n), std::vector<float>(rows * n),
                   std::vector<float>(rows * n * n)};
  for (size_t r = 0; r < rows; ++r) {
    reference::hc_coefficients(shape, mixes.data() + r * base.size(), scale.data(), base.data(),
                               out.pre.data() + r * n, out.post.data() + r * n,
                               out.comb.data() + r * n * n);
  }
  return out;
}

TEST(HcCoefficients, GiveTheWorkedExample) {
  const std::vector<float> mixes = {0.5f, -1,   0.25f, 2, 0.1f,  -0.3f, 0.7f, -2,   1, 0, -1, 0.5f,
                                    0.2f, 0.9f, -0.4f, 0, -0.7f, 0.3f,  1.5f, 0.1f, 0, 0, 0,  2};
  std::vector<float> base;
  for (int k = 0; k < 24; ++k) base.push_back(0.1f * static_cast<float>(k % 5) - 0.2f);
  const std::vector<float> scale = {1.5f, 0.5f, 2.0f};
  const Coefficients result = coefficients_of(kShape, mixes, scale, base);
  constexpr float kPrinted = 2e-7f;  // seven digits are printed
  expect_near(result.pre, {0.6341366f, 0.1679826f, 0.5926676f, 0.9568937f}, kPrinted);
  expect_near(result.post, {1.1243530f, 0.8267648f, 1.1243530f, 0.5378828f}, kPrinted);
  expect_near(result.comb,
              {0.7911927f, 0.1229368f, 0.0101425f, 0.0756455f, 0.1618821f, 0.7536921f, 0.0562592f,
               0.0282018f, 0.0094752f, 0.0803747f, 0.8903879f, 0.0201076f, 0.0374490f, 0.0429954f,
               0.0432093f, 0.8760441f},
              kPrinted);
  reference::HcShape first_pass = kShape;
  first_pass.sinkhorn_iterations = 1;
  std::vector<float> row = coefficients_of(first_pass, mixes, scale, base).comb;
  row.resize(4);
  expect_near(row, {0.7932906f, 0.1150589f, 0.0098045f, 0.1574650f}, kPrinted);
}

TEST(HcCoefficients, GiveTheRecordedOnes) {
  const Fixture data(data_path("kernels/expected.safetensors"));
  for (const std::string group : {"sinkhorn.a", "sinkhorn.b"}) {
    SCOPED_TRACE(group);
    const Coefficients result =
        coefficients_of(kShape, data.floats(group + ".mixes"), data.floats(group + ".scale"),
                        data.floats(group + ".base"));
    expect_near(result.pre, data.floats(group + ".pre"), kF32Tolerance);
    expect_near(result.post, data.floats(group + ".post"), kF32Tolerance);
    expect_near(result.comb, data.floats(group + ".comb"), kF32Tolerance);
  }
}

class HyperConnections : public testing::TestWithParam<std::string> {
 protected:
  const Fixture data_{data_path("kernels/expected.safetensors")};
};
INSTANTIATE_TEST_SUITE_P(Devices, HyperConnections, testing::ValuesIn(test_devices()),
                         [](const auto& info) { return info.param; });

// Mixes reach the operation through fn: a stream of ones has factor 1, so row sums of fn are m.
TEST_P(HyperConnections, MixesGiveTheRecordedCoefficients) {
  for (const std::string group : {"sinkhorn.a", "sinkhorn.b"}) {
    const std::vector<float> mixes = data_.floats(group + ".mixes");
    const std::vector<float> pre = data_.floats(group + ".pre");
    const std::vector<float> post = data_.floats(group + ".post");
    const std::vector<float> comb = data_.floats(group + ".comb");
    for (size_t row = 0; row < mixes.size() / 24; ++row) {
      SCOPED_TRACE(group + " row " + std::to_string(row));
      Rig rig(GetParam(), Numerics::kF32);
      std::vector<float> fn(24 * 256, 0.0f);
      for (size_t o = 0; o < 24; ++o) fn[o * 256 + o] = mixes[row * 24 + o];
      const HcMix mix{rig.make(1, 4), rig.make(1, 4), rig.make(1, 16)};
      rig->hc_mixes(rig.act(std::vector<float>(256, 1.0f), 1),
                    {.fn = rig.vector(fn),
                     .base = rig.vector(data_.floats(group + ".base")),
                     .scale = rig.vector(data_.floats(group + ".scale"))},
                    mix);
      const auto part = [row](const std::vector<float>& all, size_t n) {
        return std::vector<float>(all.begin() + row * n, all.begin() + (row + 1) * n);
      };
      expect_near(rig.floats(mix.pre), part(pre, 4), kF32Tolerance);
      expect_near(rig.floats(mix.post), part(post, 4), kF32Tolerance);
      expect_near(rig.floats(mix.comb), part(comb, 16), kF32Tolerance);
    }
  }
}

TEST_P(HyperConnections, WholeHalfGivesTheRecordedStreams) {
  for (const std::string group : {"hc.f32", "hc.bf16"}) {
    SCOPED_TRACE(group);
    const bool narrow = group == "hc.bf16";
    Rig rig(GetParam(), narrow ? Numerics::kBF16 : Numerics::kF32);
    const Tensor x = rig.act(data_.floats(group + ".x"), 6);
    const HcMix mix{rig.make(6, 4), rig.make(6, 4), rig.make(6, 16)};
    rig->hc_mixes(x,
                  {.fn = rig.vector(data_.floats("hc.f32.fn")),
                   .base = rig.vector(data_.floats("hc.f32.base")),
                   .scale = rig.vector(data_.floats("hc.f32.scale"))},
                  mix);
    expect_near(rig.floats(mix.pre), data_.floats(group + ".pre"), kF32Tolerance);
    expect_near(rig.floats(mix.post), data_.floats(group + ".post"), kF32Tolerance);
    expect_near(rig.floats(mix.comb), data_.floats(group + ".comb"), kF32Tolerance);

    const float tolerance = narrow ? 0.0f : kF32Tolerance;
    const Tensor collapsed = rig.make_act(6, 64);
    rig->hc_collapse(x, rig.full(data_.floats(group + ".pre"), 6), collapsed);
    expect_near(rig.floats(collapsed), data_.floats(group + ".collapsed"), tolerance);
    rig->hc_expand(rig.act(data_.floats(group + ".sub"), 6),
                   rig.full(data_.floats(group + ".post"), 6),
                   rig.full(data_.floats(group + ".comb"), 6), x);
    expect_near(rig.floats(x), data_.floats(group + ".expanded"), tolerance);
  }
}

TEST_P(HyperConnections, CollapseNormIsTheNormOfTheRoundedCollapse) {
  Rig rig(GetParam(), Numerics::kBF16);
  const Tensor x = rig.act(data_.floats("hc.bf16.x"), 6);
  const Tensor pre = rig.full(data_.floats("hc.bf16.pre"), 6);
  std::mt19937 random(7);
  const float* norm = rig.vector(random_bf16(64, random));
  const Tensor collapsed = rig.make_act(6, 64);
  const Tensor expected = rig.make_act(6, 64);
  const Tensor fused = rig.make_act(6, 64);
  rig->hc_collapse(x, pre, collapsed);
  rig->rms_norm(collapsed, norm, expected);
  rig->hc_collapse_norm(x, pre, norm, fused);
  expect_same_bits(rig.floats(fused), rig.floats(expected));
}

TEST_P(HyperConnections, TapIsTheMeanOfTheCopies) {
  Rig rig(GetParam(), Numerics::kF32);
  std::vector<float> x(256);
  for (int i = 0; i < 256; ++i) x[i] = static_cast<float>(i % 64 + i / 64 * 1000);
  const Tensor out = rig.make_act(1, 3 * 64);
  rig->hc_tap(rig.act(x, 1), 64, out);
  const std::vector<float> result = rig.floats(out);
  for (int i = 0; i < 192; ++i) {
    EXPECT_EQ(result[i], i / 64 == 1 ? static_cast<float>(i % 64 + 1500) : 0.0f) << i;
  }
}

}  // namespace
}  // namespace peregrine::test
