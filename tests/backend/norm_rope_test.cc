// RMS norm and rotary embedding against the recorded ones, on every backend.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "support/backend_rig.h"

namespace peregrine::test {
namespace {

// Frequencies from a recorded parameter list: dim, length, original length (0: no YaRN), base,
// factor, beta_fast, beta_slow (spec: model.md section 4).
std::vector<float> frequencies(const std::vector<double>& params) {
  const double dim = params[0], original = params[2], base = params[3], factor = params[4];
  const auto bound = [&](double turns) {
    return dim * std::log(original / (2 * std::numbers::pi * turns)) / (2 * std::log(base));
  };
  std::vector<float> result;
  for (int i = 0; i < static_cast<int>(dim) / 2; ++i) {
    double frequency = std::pow(base, -2.0 * i / dim);
    if (original > 0) {
      const double low = std::max(std::floor(bound(params[5])), 0.0);
      const double high = std::min(std::ceil(bound(params[6])), dim - 1);
      const double ramp = std::clamp((i - low) / std::max(high - low, 0.001), 0.0, 1.0);
      frequency = frequency / factor * ramp + frequency * (1 - ramp);
    }
    result.push_back(static_cast<float>(frequency));
  }
  return result;
}

Step rows_at(const std::vector<int32_t>& positions) {
  std::vector<Segment> segments;
  for (const int32_t position : positions) segments.push_back({.pos = position, .rows = 1});
  return Step(segments);
}

class NormRope : public testing::TestWithParam<std::string> {
 protected:
  const Fixture data_{data_path("kernels/expected.safetensors")};
};
INSTANTIATE_TEST_SUITE_P(Devices, NormRope, testing::ValuesIn(test_devices()),
                         [](const auto& info) { return info.param; });

TEST_P(NormRope, NormsAreTheRecordedOnes) {
  for (const std::string eps : {"1e-20", "1e-6"}) {
    for (const bool narrow : {false, true}) {
      const std::string group = "rmsnorm.eps" + eps + (narrow ? ".bf16" : "");
      SCOPED_TRACE(group);
      ModelConfig config = kernel_config();
      config.norm_eps = std::stof(eps);
      Rig rig(GetParam(), narrow ? Numerics::kBF16 : Numerics::kF32, config);
      const Tensor y = rig.make_act(8, 64);
      rig->rms_norm(rig.act(data_.floats(group + ".x"), 8), rig.vector(data_.floats(group + ".w")),
                    y);
      expect_near(rig.floats(y), data_.floats(group + ".y"), narrow ? 0.0f : kF32Tolerance);
    }
  }
}

// The pair (1, 0) rotates to (cos, sin).
TEST_P(NormRope, RotatedUnitVectorsAreTheRecordedTables) {
  for (const std::string group : {"plain", "yarn", "released_window", "released_compressed"}) {
    SCOPED_TRACE(group);
    const std::string name = "rope." + group;
    const std::vector<float> table = frequencies(data_.doubles(name + ".params"));
    const int half = static_cast<int>(table.size());
    std::vector<int32_t> positions;
    if (data_.has(name + ".rows")) {
      positions = data_.ints(name + ".rows");
    } else {
      for (int p = 0; p < 64; ++p) positions.push_back(p);
    }
    const auto rows = static_cast<int64_t>(positions.size());
    std::vector<float> units(static_cast<size_t>(rows * 2 * half), 0.0f);
    for (size_t i = 0; i < units.size(); i += 2) units[i] = 1;
    Rig rig(GetParam(), Numerics::kF32);
    const Tensor x = rig.act(units, rows);
    rig->rope(x, 1, rig.step(rows_at(positions)),
              {.frequencies = rig.vector(table), .rope_dim = 2 * half});
    const std::vector<float> rotated = rig.floats(x);
    const std::vector<float> cosines = data_.floats(name + ".cos");
    const std::vector<float> sines = data_.floats(name + ".sin");
    for (int64_t r = 0; r < rows; ++r) {
      // The last bit of a frequency grows with the position.
      const float tolerance = kF32Tolerance + 3e-8f * static_cast<float>(positions[r]);
      for (int i = 0; i < half; ++i) {
        EXPECT_NEAR(rotated[(r * half + i) * 2], cosines[r * half + i], tolerance)
            << "position " << positions[r] << " pair " << i;
        EXPECT_NEAR(rotated[(r * half + i) * 2 + 1], sines[r * half + i], tolerance)
            << "position " << positions[r] << " pair " << i;
      }
    }
  }
}

TEST_P(NormRope, RotationsAreTheRecordedOnes) {
  for (const std::string group : {"rope.plain", "rope.yarn"}) {
    const std::vector<float> table = frequencies(data_.doubles(group + ".params"));
    for (const std::string type : {".f32", ".bf16"}) {
      const bool narrow = type == ".bf16";
      const float tolerance = narrow ? 0.0f : kF32Tolerance;
      Rig rig(GetParam(), narrow ? Numerics::kBF16 : Numerics::kF32);
      const Step step({{.pos = 5, .rows = 7}});
      const std::string name = group + type;
      const auto rotated = [&](const std::string& input, int heads, bool inverse) {
        const Tensor x = rig.act(data_.floats(name + input), 7);
        rig->rope(x, heads, rig.step(step),
                  {.frequencies = rig.vector(table), .rope_dim = 32, .inverse = inverse});
        return rig.floats(x);
      };
      SCOPED_TRACE(name);
      expect_near(rotated(".k", 1, false), data_.floats(name + ".k_fwd"), tolerance);
      expect_near(rotated(".q", 4, false), data_.floats(name + ".q_fwd"), tolerance);
      expect_near(rotated(".q", 4, true), data_.floats(name + ".q_inv"), tolerance);
    }
  }
}

TEST_P(NormRope, OnlyTheLastDimsOfEachHeadTurn) {
  std::mt19937 random(11);
  const std::vector<float> x = random_values(2 * 64, random);
  const std::vector<float> table = {1.0f, 0.5f};
  Rig rig(GetParam(), Numerics::kF32);
  const Tensor whole = rig.act(x, 1);
  rig->rope(whole, 2, rig.step(Step({{.pos = 3, .rows = 1}})),
            {.frequencies = rig.vector(table), .rope_dim = 4});
  const std::vector<float> rotated = rig.floats(whole);
  for (int i = 0; i < 128; ++i) {
    if (i % 64 < 60) {
      EXPECT_EQ(rotated[i], x[i]) << i;
    } else {
      EXPECT_NE(rotated[i], x[i]) << i;
    }
  }
}

// With step 2 the positions 6 and 7 rotate as position 6: a group uses its first token.
TEST_P(NormRope, PositionStepUsesTheFirstTokenOfTheGroup) {
  std::mt19937 random(12);
  const std::vector<float> x = random_values(32, random);
  const std::vector<float> table = {1.0f, 0.7f, 0.4f, 0.1f};
  const auto rotated = [&](int position, int position_step) {
    Rig rig(GetParam(), Numerics::kF32);
    const Tensor tensor = rig.act(x, 1);
    rig->rope(tensor, 1, rig.step(Step({{.pos = position, .rows = 1}})),
              {.frequencies = rig.vector(table), .rope_dim = 8, .position_step = position_step});
    return rig.floats(tensor);
  };
  expect_same_bits(rotated(7, 2), rotated(6, 1));
  expect_same_bits(rotated(6, 2), rotated(6, 1));
  EXPECT_NE(rotated(7, 1), rotated(6, 1));
}

}  // namespace
}  // namespace peregrine::test
