// Matrix products against the recorded ones, on every backend.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/backend_rig.h"

namespace peregrine::test {
namespace {

class Linear : public testing::TestWithParam<std::string> {
 protected:
  const Fixture data_{data_path("kernels/expected.safetensors")};
};
INSTANTIATE_TEST_SUITE_P(Devices, Linear, testing::ValuesIn(test_devices()),
                         [](const auto& info) { return info.param; });

TEST_P(Linear, QuantisedProductsAreExactAfterRounding) {
  for (const std::string gemm : {"fp8_gemm", "fp4_gemm"}) {
    for (const std::string shape : {".a", ".b", ".c"}) {
      SCOPED_TRACE(gemm + shape);
      Rig rig(GetParam(), Numerics::kBF16);
      const int64_t rows = data_.view(gemm + shape + ".x").shape.at(0);
      const Weight w = rig.weight(data_, gemm + shape + ".w");
      const Tensor y = rig.make_act(rows, w.out);
      rig->linear(rig.act(data_.floats(gemm + shape + ".x"), rows), w, LinearKind::kQuantised, y);
      expect_same_bits(rig.floats(y), data_.floats(gemm + shape + ".out"));
    }
  }
}

// Feeding the recorded codes' values instead of x gives the same codes, so unquantised products of
// those values are the recorded float64 products.
TEST_P(Linear, WidenedProductsOfQuantisedInputsAreTheExactOnes) {
  for (const std::string gemm : {"fp8_gemm.a", "fp8_gemm.b", "fp4_gemm.a", "fp4_gemm.c"}) {
    SCOPED_TRACE(gemm);
    Rig rig(GetParam(), Numerics::kF32);
    const int64_t rows = data_.view(gemm + ".x").shape.at(0);
    std::vector<float> x = data_.floats(gemm + ".a_codes");
    const std::vector<float> scales = data_.floats(gemm + ".a_scale");
    for (size_t i = 0; i < x.size(); ++i) x[i] *= scales[i / 32];
    const std::vector<float> exact = data_.floats(gemm + ".exact");
    const Weight w = rig.weight(data_, gemm + ".w");
    for (const LinearKind kind : {LinearKind::kQuantised, LinearKind::kPlain, LinearKind::kFull}) {
      const Tensor y = rig.make(rows, w.out);
      rig->linear(rig.full(x, rows), w, kind, y);
      const std::vector<float> actual = rig.floats(y);
      for (size_t i = 0; i < actual.size(); ++i) {
        EXPECT_NEAR(actual[i], exact[i], kF32Tolerance * std::max(1.0f, std::fabs(exact[i]))) << i;
      }
    }
  }
}

TEST_P(Linear, GroupedProductEqualsOneProductAGroup) {
  constexpr int kGroups = 2, kRows = 3, kIn = 64, kOut = 32;
  std::mt19937 random(5);
  for (const WeightFormat format : {WeightFormat::kF8, WeightFormat::kBF16, WeightFormat::kF32}) {
    Rig rig(GetParam(), Numerics::kBF16);
    const Weight w = rig.random_weight(format, kGroups * kOut, kIn, random);
    const std::vector<float> x = random_bf16(kRows * kGroups * kIn, random);
    const Tensor y = rig.make_act(kRows, kGroups * kOut);
    rig->grouped_linear(rig.act(x, kRows), w, kGroups, y);
    const std::vector<float> actual = rig.floats(y);
    for (int group = 0; group < kGroups; ++group) {
      std::vector<float> part;
      for (int r = 0; r < kRows; ++r) {
        const auto first = x.begin() + (r * kGroups + group) * kIn;
        part.insert(part.end(), first, first + kIn);
      }
      const Tensor all = rig.make_act(kRows, kGroups * kOut);
      rig->linear(rig.act(part, kRows), w, LinearKind::kPlain, all);
      const std::vector<float> expected = rig.floats(all);
      for (int r = 0; r < kRows; ++r) {
        for (int o = group * kOut; o < (group + 1) * kOut; ++o) {
          EXPECT_EQ(actual[r * kGroups * kOut + o], expected[r * kGroups * kOut + o]);
        }
      }
    }
  }
}

TEST_P(Linear, MarkovHeadGivesTheRecordedBias) {
  Rig rig(GetParam(), Numerics::kF32);
  const std::vector<int32_t> tokens = data_.ints("markov.tokens");
  const auto rows = static_cast<int64_t>(tokens.size());
  const Weight embed = rig.weight(data_, "markov.embed");
  const Weight head = rig.weight(data_, "markov.head");
  const Tensor e = rig.make_act(rows, embed.in);
  rig->embed(embed, rig.ints(tokens, 1).i32(), 1, e);
  const Tensor bias = rig.make(rows, head.out);
  rig->linear(e, head, LinearKind::kFull, bias);
  expect_near(rig.floats(bias), data_.floats("markov.bias"), kF32Tolerance);
}

// Its second input is the Markov embedding of the recorded tokens.
TEST_P(Linear, ConfidenceHeadGivesTheRecordedLogits) {
  Rig rig(GetParam(), Numerics::kF32);
  const std::vector<int32_t> tokens = data_.ints("markov.tokens");
  const auto rows = static_cast<int64_t>(tokens.size());
  const Weight embed = rig.weight(data_, "markov.embed");
  const Tensor e = rig.make_act(rows, embed.in);
  rig->embed(embed, rig.ints(tokens, 1).i32(), 1, e);
  const Tensor out = rig.make(rows, 1);
  rig->confidence(rig.act(data_.floats("confidence.hidden"), rows), e,
                  rig.weight(data_, "confidence.proj"), out);
  expect_near(rig.floats(out), data_.floats("confidence.out"), kF32Tolerance);
}

TEST_P(Linear, EmbeddingCopiesTheRow) {
  Rig rig(GetParam(), Numerics::kBF16);
  std::mt19937 random(3);
  const Weight table = rig.random_weight(WeightFormat::kBF16, 5, 32, random);
  const Tensor one = rig.make_act(3, 32);
  const Tensor four = rig.make_act(3, 4 * 32);
  const Tensor tokens = rig.ints({4, 0, 4}, 1);
  rig->embed(table, tokens.i32(), 1, one);
  rig->embed(table, tokens.i32(), 4, four);
  const std::vector<float> single = rig.floats(one);
  const std::vector<float> copies = rig.floats(four);
  EXPECT_NE(single[0], single[32]);
  for (int i = 0; i < 3 * 4 * 32; ++i) EXPECT_EQ(copies[i], single[i / 128 * 32 + i % 32]) << i;
  for (int i = 0; i < 32; ++i) EXPECT_EQ(single[i], single[64 + i]) << i;
}

TEST_P(Linear, GatherRowsTakesRowsInOrder) {
  Rig rig(GetParam(), Numerics::kF32);
  const Tensor src = rig.full({0, 1, 10, 11, 20, 21}, 3);
  const Tensor dst = rig.make(4, 2);
  rig->gather_rows(src, rig.ints({2, 0, 2, 1}, 1).i32(), dst);
  EXPECT_EQ(rig.floats(dst), (std::vector<float>{20, 21, 0, 1, 20, 21, 10, 11}));
}

TEST_P(Linear, ScaleRoundsAndAddDoesNot) {
  Rig rig(GetParam(), Numerics::kBF16);
  const Tensor x = rig.act({1.0078125f, -2, 3}, 1);
  rig->scale(x, 1.0f / 3.0f);
  EXPECT_EQ(rig.floats(x), (std::vector<float>{0.3359375f, -0.66796875f, 1}));
  const Tensor y = rig.full({1, 1, 0}, 1);
  rig->add(rig.full({0x1p-20f, 2, 0}, 1), y);
  EXPECT_EQ(rig.floats(y), (std::vector<float>{1 + 0x1p-20f, 3, 0}));
}

}  // namespace
}  // namespace peregrine::test
