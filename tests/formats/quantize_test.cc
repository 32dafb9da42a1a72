// The block quantisers against every worked example of spec/quantization.md.
#include "formats/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "formats/bf16.h"

namespace peregrine {
namespace {

std::vector<float> padded(std::vector<float> x, size_t block) {
  x.resize(block, 0.0f);
  return x;
}

void expect_values(const std::vector<float>& actual, const std::vector<float>& expected) {
  for (size_t i = 0; i < actual.size(); ++i) {
    const float value = i < expected.size() ? expected[i] : 0.0f;
    EXPECT_EQ(actual[i], value) << "element " << i;
    const bool negative = i < expected.size() && std::signbit(value);
    EXPECT_EQ(std::signbit(actual[i]), negative) << "element " << i;
    EXPECT_EQ(round_bf16(actual[i]), actual[i]) << "element " << i << " is not exact in bf16";
  }
}

void expect_act(const std::vector<float>& x, int scale, const std::vector<int>& codes,
                const std::vector<float>& values) {
  std::vector<float> block = padded(x, kActBlock);
  std::vector<uint8_t> actual(kActBlock);
  std::vector<uint8_t> actual_scale(1);
  act_quant_row(block.data(), kActBlock, actual.data(), actual_scale.data());
  EXPECT_EQ(actual_scale[0], scale);
  for (size_t i = 0; i < block.size(); ++i) {
    EXPECT_EQ(actual[i], i < codes.size() ? codes[i] : 0) << "element " << i;
  }
  std::vector<float> y(kActBlock);
  act_dequant_row(actual.data(), actual_scale.data(), kActBlock, y.data());
  expect_values(y, values);
  act_quant_in_place(block.data(), kActBlock);
  expect_values(block, values);
}

TEST(ActQuant, Examples) {
  expect_act({3, -0.69921875f, 0.010986328125f, 448, -500, 1.0013580322265625e-4f,
              9.9945068359375e-4f, -2, 5.5f, 0.30078125f},
             128, {0x3C, 0xAB, 0x03, 0x76, 0xF8, 0x00, 0x00, 0xB8, 0x43, 0x22},
             {3, -0.6875f, 0.01171875f, 448, -512, 0, 0, -2, 5.5f, 0.3125f});
  expect_act({0.02001953125f, -0.0150146484375f, 9.9945068359375e-4f, 0.0078125f}, 113,
             {0x7A, 0xF7, 0x58, 0x70}, {0.01953125f, -0.0146484375f, 0.0009765625f, 0.0078125f});
}

TEST(ActQuant, ZeroAndTinyBlocks) {
  expect_act({}, 105, {}, {});
  expect_act({0x1p-32f, -0x1p-33f}, 105, {0x00, 0x80}, {0.0f, -0.0f});
  expect_act({0x1p-31f}, 105, {0x01}, {0x1p-31f});
}

TEST(ActQuant, DequantisedRowsQuantiseToThemselves) {
  std::vector<float> x(64);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i) * 1.7f) * 3.0f;
  act_quant_in_place(x.data(), 64);
  std::vector<float> again = x;
  act_quant_in_place(again.data(), 64);
  EXPECT_EQ(again, x);
}

// Codes are given one a nibble, in element order.
template <typename Quantise, typename Dequantise, typename InPlace>
void expect_fp4(int block_size, Quantise quantise, Dequantise dequantise, InPlace in_place,
                const std::vector<float>& x, int scale, const std::vector<int>& codes,
                const std::vector<float>& values) {
  std::vector<float> block = padded(x, static_cast<size_t>(block_size));
  std::vector<uint8_t> packed(block.size() / 2);
  std::vector<uint8_t> actual_scale(1);
  quantise(block.data(), block_size, packed.data(), actual_scale.data());
  EXPECT_EQ(actual_scale[0], scale);
  for (size_t i = 0; i < block.size(); ++i) {
    EXPECT_EQ(e2m1_unpack(packed.data(), static_cast<int64_t>(i)), i < codes.size() ? codes[i] : 0)
        << "element " << i;
  }
  std::vector<float> y(block.size());
  dequantise(packed.data(), actual_scale.data(), block_size, y.data());
  expect_values(y, values);
  in_place(block.data(), block_size);
  expect_values(block, values);
}

void expect_e8m0(const std::vector<float>& x, int scale, const std::vector<int>& codes,
                 const std::vector<float>& values) {
  expect_fp4(kFp4E8m0Block, fp4_e8m0_row, fp4_e8m0_dequant_row, fp4_e8m0_in_place, x, scale, codes,
             values);
}

void expect_e4m3(const std::vector<float>& x, int scale, const std::vector<int>& codes,
                 const std::vector<float>& values) {
  expect_fp4(kFp4E4m3Block, fp4_e4m3_row, fp4_e4m3_dequant_row, fp4_e4m3_in_place, x, scale, codes,
             values);
}

TEST(Fp4E8m0, Examples) {
  expect_e8m0({1, -0.25f, 0.75f, 1.25f, -1.75f, 2.5f, 3.5f, 5, 6, -7}, 128,
              {0x1, 0x8, 0x1, 0x1, 0xA, 0x2, 0x4, 0x4, 0x5, 0xE},
              {1, -0.0f, 1, 1, -2, 2, 4, 4, 6, -8});
  expect_e8m0({0.5f, 0.1875f, -0.3125f, 0.0625f, 0.4375f}, 124, {0x6, 0x3, 0xC, 0x1, 0x6},
              {0.5f, 0.1875f, -0.25f, 0.0625f, 0.5f});
  expect_e8m0({}, 1, {}, {});
}

TEST(Fp4E4m3, Examples) {
  expect_e4m3(
      {10, -3.296875f, 0.8984375f, 2.203125f, -0.400390625f, 7.09375f, 0.050048828125f, -9.875f},
      0x3D, {0x7, 0xC, 0x1, 0x3, 0x8, 0x6, 0x0, 0xF},
      {9.75f, -3.25f, 0.8125f, 2.4375f, -0.0f, 6.5f, 0, -9.75f});
  expect_e4m3({2.703125f, -1, 0.330078125f, 0.224609375f, -2.59375f}, 0x2E,
              {0x7, 0xC, 0x2, 0x1, 0xF}, {2.625f, -0.875f, 0.4375f, 0.21875f, -2.625f});
  expect_e4m3({}, 0x01, {}, {});
}

TEST(Fp4E4m3, ScaleExamples) {
  expect_e4m3({1.1015625f}, 0x24, {0x7}, {1.125f});
  expect_e4m3({1.296875f}, 0x26, {0x7}, {1.3125f});
  expect_e4m3({2}, 0x2B, {0x7}, {2.0625f});
  expect_e4m3({5.3125f}, 0x36, {0x7}, {5.25f});
  // The scale rounded down, so the largest element clamps.
  expect_e4m3({3.09375f}, 0x30, {0x7}, {3.0f});
  // Beyond the format's reach: the scale saturates at 448, the value at 2688.
  expect_e4m3({4000}, 0x7E, {0x7}, {2688});
}

TEST(WeightFormats, FirstBytesOfAReleasedTensor) {
  const uint8_t codes[8] = {0xD8, 0x71, 0xF2, 0x79, 0x70, 0x69, 0xF0, 0xE5};
  const float values[8] = {-0.00390625f, 0.03515625f,  -0.0390625f, 0.0703125f,
                           0.03125f,     0.017578125f, -0.03125f,   -0.0126953125f};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(e4m3_value(codes[i]) * e8m0_value(0x73), values[i]);
}

}  // namespace
}  // namespace peregrine
