// The quantisers against the recorded rows of the reference: codes, scales and dequantised values,
// bit by bit, for bf16 and float inputs.
#include <gtest/gtest.h>

#include <string>

#include "formats/quantize.h"
#include "support/fixtures.h"

namespace peregrine {
namespace {

using QuantiseRow = void (*)(const float*, int64_t, uint8_t*, uint8_t*);
using DequantiseRow = void (*)(const uint8_t*, const uint8_t*, int64_t, float*);
using InPlace = void (*)(float*, int64_t);

struct Quantiser {
  const char* group;
  QuantiseRow quantise;
  DequantiseRow dequantise;
  InPlace in_place;
};

constexpr Quantiser kQuantisers[] = {
    {"act_quant", act_quant_row, act_dequant_row, act_quant_in_place},
    {"fp4_e8m0", fp4_e8m0_row, fp4_e8m0_dequant_row, fp4_e8m0_in_place},
    {"fp4_e4m3", fp4_e4m3_row, fp4_e4m3_dequant_row, fp4_e4m3_in_place},
};

// Equal as bits, so that the sign of zero counts.
void expect_same_bits(const std::vector<float>& actual, const std::vector<float>& expected,
                      const std::string& name) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(float_bits(actual[i]), float_bits(expected[i])) << name << " element " << i;
  }
}

TEST(QuantiserFixtures, CodesScalesAndValues) {
  const test::Fixture fixture(test::data_path("kernels/expected.safetensors"));
  for (const Quantiser& quantiser : kQuantisers) {
    for (const char* type : {".bf16", ".f32"}) {
      const std::string name = std::string(quantiser.group) + type;
      const std::vector<float> x = fixture.floats(name + ".x");
      const std::vector<uint8_t> codes = fixture.bytes(name + ".codes");
      const std::vector<uint8_t> scales = fixture.bytes(name + ".scale");
      const std::vector<float> values = fixture.floats(name + ".qdq");
      const int64_t n = static_cast<int64_t>(x.size());
      ASSERT_EQ(n, 14 * 96);

      std::vector<uint8_t> actual_codes(codes.size());
      std::vector<uint8_t> actual_scales(scales.size());
      quantiser.quantise(x.data(), n, actual_codes.data(), actual_scales.data());
      EXPECT_EQ(actual_codes, codes) << name;
      EXPECT_EQ(actual_scales, scales) << name;

      std::vector<float> y(x.size());
      quantiser.dequantise(codes.data(), scales.data(), n, y.data());
      expect_same_bits(y, values, name);
      std::vector<float> in_place = x;
      quantiser.in_place(in_place.data(), n);
      expect_same_bits(in_place, values, name);
    }
  }
}

}  // namespace
}  // namespace peregrine
