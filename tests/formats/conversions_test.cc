// Scalar conversions, against the tables of spec/quantization.md and brute force over all codes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"

namespace peregrine {
namespace {

constexpr int kBf16Count = 1 << 16;

// The code whose value is nearest to |x|, ties to the even code; codes 0..last, ascending values.
template <typename Value>
int nearest_code(double magnitude, int last, Value value) {
  int best = 0;
  double best_distance = std::abs(magnitude - value(0));
  for (int code = 1; code <= last; ++code) {
    const double distance = std::abs(magnitude - value(code));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return best;
}

TEST(Bf16, EveryValueSurvivesARoundTrip) {
  for (int bits = 0; bits < kBf16Count; ++bits) {
    const float value = bf16_value(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(round_bf16(value)));
      EXPECT_EQ(bf16_bits(value), bits | 0x40);
    } else {
      ASSERT_EQ(bf16_bits(value), bits);
    }
  }
}

TEST(Bf16, RoundsToNearestTiesToEven) {
  for (uint32_t upper = 0; upper < 0x7F80; ++upper) {
    const uint32_t base = upper << 16;
    ASSERT_EQ(bf16_bits(float_from_bits(base | 0x7FFF)), upper);
    ASSERT_EQ(bf16_bits(float_from_bits(base | 0x8000)), upper + (upper & 1));
    ASSERT_EQ(bf16_bits(float_from_bits(base | 0x8001)), upper + 1);
    ASSERT_EQ(bf16_bits(float_from_bits(0x80000000u | base | 0x8001)), 0x8000 | (upper + 1));
  }
}

TEST(Bf16, NanWithLowBitsOnlyStaysNan) {
  EXPECT_TRUE(std::isnan(round_bf16(float_from_bits(0x7F800001u))));
  EXPECT_TRUE(std::isnan(round_bf16(float_from_bits(0xFFFFFFFFu))));
}

TEST(E4m3, TableOfTheFormat) {
  const std::vector<std::pair<int, float>> table = {
      {0x00, 0.0f},   {0x01, 0.001953125f}, {0x07, 0.013671875f}, {0x08, 0.015625f}, {0x38, 1.0f},
      {0x39, 1.125f}, {0x40, 2.0f},         {0x44, 3.0f},         {0x7E, 448.0f},
  };
  for (const auto& [code, value] : table) {
    EXPECT_EQ(e4m3_value(static_cast<uint8_t>(code)), value);
    EXPECT_EQ(e4m3_bits(value), code);
    EXPECT_EQ(e4m3_bits(-value), code | 0x80);
  }
}

TEST(E4m3, EveryCodeSurvivesARoundTripAndGrows) {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_value(static_cast<uint8_t>(code));
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(e4m3_bits(value), 0x7F);
      continue;
    }
    EXPECT_EQ(e4m3_bits(value), code);
    EXPECT_EQ(std::signbit(value), code >= 128);
    if ((code & 0x7F) != 0) {
      EXPECT_GT(std::abs(value), std::abs(e4m3_value(static_cast<uint8_t>(code - 1))));
    }
  }
}

TEST(E4m3, NearestForEveryBf16Input) {
  for (int bits = 0; bits < kBf16Count; ++bits) {
    const float x = bf16_value(static_cast<uint16_t>(bits));
    if (std::isnan(x)) {
      ASSERT_EQ(e4m3_bits(x), 0x7F);
      continue;
    }
    const double magnitude = std::min(std::abs(static_cast<double>(x)), 448.0);
    const int nearest = nearest_code(magnitude, 0x7E, [](int code) {
      return static_cast<double>(e4m3_value(static_cast<uint8_t>(code)));
    });
    ASSERT_EQ(e4m3_bits(x), nearest | (std::signbit(x) ? 0x80 : 0)) << "x = " << x;
  }
}

TEST(E4m3, MidpointsAndTheirFloatNeighbours) {
  for (int code = 0; code < 0x7E; ++code) {
    const float lower = e4m3_value(static_cast<uint8_t>(code));
    const float upper = e4m3_value(static_cast<uint8_t>(code + 1));
    const float middle = (lower + upper) / 2;
    EXPECT_EQ(e4m3_bits(middle), code + (code & 1));
    EXPECT_EQ(e4m3_bits(std::nextafter(middle, 0.0f)), code);
    EXPECT_EQ(e4m3_bits(std::nextafter(middle, 1000.0f)), code + 1);
  }
  EXPECT_EQ(e4m3_bits(std::numeric_limits<float>::infinity()), 0x7E);
  EXPECT_EQ(e4m3_bits(-1e30f), 0xFE);
  EXPECT_EQ(e4m3_bits(std::numeric_limits<float>::denorm_min()), 0x00);
  EXPECT_EQ(e4m3_bits(-std::numeric_limits<float>::denorm_min()), 0x80);
}

TEST(E8m0, ValuesOfAllBytes) {
  for (int byte = 0; byte < 255; ++byte) {
    EXPECT_EQ(e8m0_value(static_cast<uint8_t>(byte)), std::ldexp(1.0, byte - 127));
  }
  EXPECT_TRUE(std::isnan(e8m0_value(255)));
}

// Smallest e with limit * 2^e >= amax, in exact arithmetic (doubles hold all numbers involved).
int exact_ceil_log2(double amax, double limit) {
  int e = std::ilogb(amax) - std::ilogb(limit) - 2;
  while (std::ldexp(limit, e) < amax) ++e;
  return e;
}

TEST(E8m0, CeilScaleIsExactForEveryBf16Maximum) {
  EXPECT_EQ(float_bits(kInverse448), 0x3B124925u);
  EXPECT_EQ(float_bits(kInverse6), 0x3E2AAAABu);
  for (int bits = 0; bits < 0x7F80; ++bits) {
    const float amax = bf16_value(static_cast<uint16_t>(bits));
    if (amax < 0x1p-31f || amax > 0x1p17f) continue;
    const int e448 = exact_ceil_log2(amax, 448.0);
    const int e6 = exact_ceil_log2(amax, 6.0);
    ASSERT_EQ(e8m0_ceil_scale(amax, kInverse448), e448 + 127) << amax;
    ASSERT_EQ(e8m0_ceil_scale(amax, kInverse6), e6 + 127) << amax;
    // The integer form: exponent, and the 7-bit mantissa against that of 448 and 6.
    const int exponent = (bits >> 7) - 127;
    const int mantissa = bits & 0x7F;
    ASSERT_EQ(e448, exponent - 8 + (mantissa > 0x60 ? 1 : 0));
    ASSERT_EQ(e6, exponent - 2 + (mantissa > 0x40 ? 1 : 0));
  }
}

TEST(E8m0, CeilScaleOfValuesThatAreNotFinite) {
  EXPECT_EQ(e8m0_ceil_scale(std::numeric_limits<float>::infinity(), kInverse6), 255);
  EXPECT_EQ(e8m0_ceil_scale(std::numeric_limits<float>::quiet_NaN(), kInverse6), 255);
}

TEST(E2m1, TableOfTheFormat) {
  const float values[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  for (int code = 0; code < 8; ++code) {
    EXPECT_EQ(e2m1_value(static_cast<uint8_t>(code)), values[code]);
    EXPECT_EQ(e2m1_value(static_cast<uint8_t>(code + 8)), -values[code]);
    EXPECT_EQ(std::signbit(e2m1_value(static_cast<uint8_t>(code + 8))), true);
    EXPECT_EQ(e2m1_code(values[code]), code);
    EXPECT_EQ(e2m1_code(-values[code]), code + 8);
  }
}

TEST(E2m1, MidpointsOfTheSpecification) {
  const float midpoints[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  const float rounded[7] = {0.0f, 1.0f, 1.0f, 2.0f, 2.0f, 4.0f, 4.0f};
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(e2m1_value(e2m1_code(midpoints[i])), rounded[i]);
    EXPECT_EQ(e2m1_code(std::nextafter(midpoints[i], 0.0f)), i);
    EXPECT_EQ(e2m1_code(std::nextafter(midpoints[i], 9.0f)), i + 1);
  }
  EXPECT_EQ(e2m1_code(-0.25f), 8);
}

TEST(E2m1, NearestForEveryBf16Input) {
  for (int bits = 0; bits < kBf16Count; ++bits) {
    const float x = bf16_value(static_cast<uint16_t>(bits));
    if (std::isnan(x)) continue;
    const double magnitude = std::min(std::abs(static_cast<double>(x)), 6.0);
    const int nearest = nearest_code(magnitude, 7, [](int code) {
      return static_cast<double>(e2m1_value(static_cast<uint8_t>(code)));
    });
    ASSERT_EQ(e2m1_code(x), nearest | (std::signbit(x) ? 8 : 0)) << "x = " << x;
  }
}

TEST(E2m1, TheEvenElementIsInTheLowNibble) {
  const uint8_t packed[2] = {e2m1_pack(0x3, 0xA), e2m1_pack(0xF, 0x0)};
  EXPECT_EQ(packed[0], 0xA3);
  EXPECT_EQ(packed[1], 0x0F);
  const uint8_t expected[4] = {0x3, 0xA, 0xF, 0x0};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(e2m1_unpack(packed, i), expected[i]);
}

}  // namespace
}  // namespace peregrine
