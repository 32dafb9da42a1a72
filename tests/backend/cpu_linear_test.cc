// Products of the cpu backend on every dispatch target: near the reference within a bound derived
// from the sums, and the same bits for every number of rows and threads.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/reference/weight_row.h"
#include "formats/quantize.h"
#include "support/cpu_variants.h"

namespace peregrine::test {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kF8,
                                     WeightFormat::kF4};

class CpuLinear : public testing::TestWithParam<CpuVariant> {
 protected:
  std::mt19937 random_{11};
};
INSTANTIATE_TEST_SUITE_P(Targets, CpuLinear, testing::ValuesIn(cpu_variants()),
                         [](const auto& info) { return info.param.name; });

std::vector<float> multiply(Rig& rig, const std::vector<float>& x, int64_t rows, const Weight& w,
                            LinearKind kind) {
  const Tensor y = rig.make(rows, w.out);
  rig->linear(rig.full(x, rows), w, kind, y);
  return rig.floats(y);
}

// Double-precision products, and the sums of magnitudes that bound the error of any f32 order.
struct Exact {
  std::vector<double> sums;
  std::vector<double> magnitudes;
};

Exact exact_products(const std::vector<float>& x, int64_t rows, const Weight& w) {
  Exact exact;
  std::vector<float> weights(static_cast<size_t>(w.in));
  exact.sums.resize(static_cast<size_t>(rows * w.out));
  exact.magnitudes.resize(exact.sums.size());
  for (int64_t o = 0; o < w.out; ++o) {
    reference::widen_row(w, o, weights.data());
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0;
      double magnitude = 0;
      for (int64_t i = 0; i < w.in; ++i) {
        const double product = static_cast<double>(x[r * w.in + i]) * weights[i];
        sum += product;
        magnitude += std::fabs(product);
      }
      exact.sums[static_cast<size_t>(r * w.out + o)] = sum;
      exact.magnitudes[static_cast<size_t>(r * w.out + o)] = magnitude;
    }
  }
  return exact;
}

// Each of the in additions and multiplications errs by at most half an ulp of a partial sum, which
// is at most the sum of magnitudes: in * 2^-24 * magnitude, here with in + 16 for the lane tree and
// doubled for terms of second order. The bf16 dot instruction rounds both its additions, so twice.
// A bf16 result is off by half a bf16 ulp more: 2^-8 relative.
TEST_P(CpuLinear, StaysWithinTheBoundOfF32Sums) {
  for (const Numerics numerics : {Numerics::kBF16, Numerics::kF32}) {
    for (const WeightFormat format : kFormats) {
      for (const int64_t in : {32, 64, 96, 160, 1280}) {
        const int64_t rows = 11, out = 40;
        SCOPED_TRACE(testing::Message() << "format " << static_cast<int>(format) << " in " << in
                                        << (numerics == Numerics::kF32 ? " f32" : " bf16"));
        Rig rig(make_cpu(GetParam(), numerics));
        const Weight w = rig.random_weight(format, out, in, random_);
        std::vector<float> x = numerics == Numerics::kF32
                                   ? random_values(static_cast<size_t>(rows * in), random_)
                                   : random_bf16(static_cast<size_t>(rows * in), random_);
        for (const LinearKind kind : {LinearKind::kFull, LinearKind::kPlain}) {
          const std::vector<float> y = multiply(rig, x, rows, w, kind);
          const Exact exact = exact_products(x, rows, w);
          const bool rounded = kind == LinearKind::kPlain && numerics == Numerics::kBF16;
          for (size_t i = 0; i < y.size(); ++i) {
            const double bound =
                4.0 * static_cast<double>(in + 16) * 0x1p-24 * exact.magnitudes[i] +
                (rounded ? 0x1p-8 * std::fabs(exact.sums[i]) : 0.0);
            ASSERT_LE(std::fabs(y[i] - exact.sums[i]), bound) << i;
          }
        }
      }
    }
  }
}

TEST_P(CpuLinear, QuantisesInputsAsActQuantDoes) {
  const int64_t rows = 5, in = 96, out = 40;
  std::vector<float> x = random_bf16(static_cast<size_t>(rows * in), random_);
  // Blocks of zeros, of tiny numbers, with codes below the normal range, and with large numbers.
  for (int64_t i = 0; i < 32; ++i) {
    x[static_cast<size_t>(i)] = 0;
    x[static_cast<size_t>(in + i)] = round_bf16(x[static_cast<size_t>(in + i)] * 1e-6f);
    x[static_cast<size_t>(2 * in + i)] *= i % 2 == 0 ? 0x1p-12f : 1.0f;
    x[static_cast<size_t>(3 * in + i)] *= 0x1p40f;
  }
  std::vector<float> quantised = x;
  for (int64_t r = 0; r < rows; ++r) act_quant_in_place(quantised.data() + r * in, in);
  for (const WeightFormat format : {WeightFormat::kF8, WeightFormat::kF4}) {
    Rig rig(make_cpu(GetParam(), Numerics::kBF16));
    const Weight w = rig.random_weight(format, out, in, random_);
    expect_same_bits(multiply(rig, x, rows, w, LinearKind::kQuantised),
                     multiply(rig, quantised, rows, w, LinearKind::kPlain));
  }
}

// Every code of FP8 and FP4 and every place in a row: one weight at a time against 1.
TEST_P(CpuLinear, WidensEveryCodeExactly) {
  for (const WeightFormat format : {WeightFormat::kF8, WeightFormat::kF4}) {
    const int64_t codes = format == WeightFormat::kF8 ? 256 : 16;
    const int64_t in = 96;
    Rig rig(make_cpu(GetParam(), Numerics::kBF16));
    Weight w{.format = format, .out = codes, .in = in};
    std::vector<uint8_t> data(w.data_bytes());
    std::vector<uint8_t> scales(w.scale_bytes());
    for (int64_t o = 0; o < codes; ++o) {
      for (int64_t i = 0; i < in; ++i) {
        const auto code = static_cast<uint8_t>((o + i) % codes);
        const int64_t at = o * in + i;
        if (format == WeightFormat::kF8) {
          data[static_cast<size_t>(at)] = (code & 0x7F) == 0x7F ? 0 : code;
        } else {
          data[static_cast<size_t>(at / 2)] |= static_cast<uint8_t>(at % 2 == 0 ? code : code << 4);
        }
      }
    }
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<uint8_t>(60 + i % 130);
    w.data = rig.bytes(data);
    w.scale = rig.bytes(scales);
    // Row r of x is the unit vector r: outputs are the weights of column r themselves.
    std::vector<float> x(static_cast<size_t>(in * in), 0.0f);
    for (int64_t r = 0; r < in; ++r) x[static_cast<size_t>(r * in + r)] = 1.0f;
    std::vector<float> row(static_cast<size_t>(in));
    const std::vector<float> many = multiply(rig, x, in, w, LinearKind::kFull);
    for (int64_t r = 0; r < in; ++r) {
      const std::vector<float> unit(x.begin() + r * in, x.begin() + (r + 1) * in);
      const std::vector<float> one = multiply(rig, unit, 1, w, LinearKind::kFull);
      for (int64_t o = 0; o < codes; ++o) {
        reference::widen_row(w, o, row.data());
        ASSERT_EQ(one[static_cast<size_t>(o)], row[static_cast<size_t>(r)]) << o << " " << r;
        ASSERT_EQ(many[static_cast<size_t>(r * codes + o)], row[static_cast<size_t>(r)]);
      }
    }
  }
}

TEST_P(CpuLinear, BitsDoNotDependOnTheNumberOfRowsOrThreads) {
  constexpr int64_t kAll = 64;
  for (const WeightFormat format : kFormats) {
    for (const int64_t in : {64, 96, 160, 1056}) {
      for (const int64_t out : {1, 7, 40, 64}) {
        SCOPED_TRACE(testing::Message()
                     << "format " << static_cast<int>(format) << " [" << out << ", " << in << "]");
        Rig rig(make_cpu(GetParam(), Numerics::kBF16, 1));
        const Weight w = rig.random_weight(format, out, in, random_);
        const std::vector<float> x = random_bf16(static_cast<size_t>(kAll * in), random_);
        const std::vector<float> all = multiply(rig, x, kAll, w, LinearKind::kFull);
        for (const int64_t rows :
             {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 31, 63}) {
          // The last rows, so that every row also changes its place.
          const std::vector<float> some(x.end() - rows * in, x.end());
          const std::vector<float> expected(all.end() - rows * out, all.end());
          expect_same_bits(multiply(rig, some, rows, w, LinearKind::kFull), expected);
        }
        for (const int threads : {2, 3}) {
          Rig other(make_cpu(GetParam(), Numerics::kBF16, threads));
          expect_same_bits(multiply(other, x, kAll, w, LinearKind::kFull), all);
        }
      }
    }
  }
}

// Results are defined on sixteen lanes, so vector width does not show. Targets without fused
// multiply-add are apart.
TEST(CpuTargets, WithFusedMultiplyAddAgreeBitForBit) {
  std::mt19937 random(3);
  for (const WeightFormat format : kFormats) {
    std::vector<float> first;
    for (const CpuVariant& variant : cpu_variants()) {
      if (variant.name.find("AVX") == std::string::npos &&
          variant.name.find("NEON") == std::string::npos) {
        continue;
      }
      Rig rig(make_cpu(variant, Numerics::kF32));
      std::mt19937 same(5);
      const Weight w = rig.random_weight(format, 40, 160, same);
      const std::vector<float> x = random_values(7 * 160, same);
      const std::vector<float> y = multiply(rig, x, 7, w, LinearKind::kFull);
      if (first.empty()) first = y;
      expect_same_bits(y, first);
    }
  }
}

TEST(CpuTargets, NameTellsTargetAndThreads) {
  for (const CpuVariant& variant : cpu_variants()) {
    const std::string name = make_cpu(variant, Numerics::kBF16, 3)->name();
    EXPECT_NE(name.find("3 threads"), std::string::npos) << name;
    EXPECT_EQ(name.find("bf16") != std::string::npos, variant.name == "bf16") << name;
  }
}

}  // namespace
}  // namespace peregrine::test
