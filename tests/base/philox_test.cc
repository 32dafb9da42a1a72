// Philox4x32-10 against the known answers of its authors' distribution, and the derived noise.
#include "base/philox.h"

#include <gtest/gtest.h>

#include <set>

namespace peregrine {
namespace {

TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, EveryPartOfTheKeyMatters) {
  const std::set<double> values = {
      uniform(1, 2, Purpose::kSample, 3),
      uniform(2, 2, Purpose::kSample, 3),
      uniform(1 + (uint64_t{1} << 32), 2, Purpose::kSample, 3),
      uniform(1, 3, Purpose::kSample, 3),
      uniform(1, 2 + (uint64_t{1} << 32), Purpose::kSample, 3),
      uniform(1, 2, Purpose::kDraft, 3),
      uniform(1, 2, Purpose::kVerify, 3),
      uniform(1, 2, Purpose::kBonus, 3),
      uniform(1, 2, Purpose::kSample, 4),
  };
  EXPECT_EQ(values.size(), 9u);
  EXPECT_EQ(uniform(1, 2, Purpose::kSample, 3), uniform(1, 2, Purpose::kSample, 3));
}

TEST(Philox, UniformNumbersFillTheInterval) {
  constexpr int kDraws = 100000;
  constexpr int kCells = 100;
  std::array<int, kCells> cells{};
  for (uint32_t i = 0; i < kDraws; ++i) {
    const double u = uniform(7, i, Purpose::kVerify, 0);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    ++cells[static_cast<size_t>(u * kCells)];
  }
  double statistic = 0;
  for (const int count : cells) {
    const double expected = double{kDraws} / kCells;
    statistic += (count - expected) * (count - expected) / expected;
  }
  EXPECT_LT(statistic, 160.0);  // 99 degrees of freedom: exceeded once in 10,000 seeds
}

TEST(Philox, NoiseHasTheRightMoments) {
  constexpr int kDraws = 100000;
  double exponential_sum = 0;
  double exponential_squares = 0;
  double gumbel_sum = 0;
  for (uint32_t i = 0; i < kDraws; ++i) {
    const double e = exponential(11, 0, Purpose::kDraft, i);
    ASSERT_GT(e, 0.0);
    exponential_sum += e;
    exponential_squares += e * e;
    gumbel_sum += gumbel(11, 0, Purpose::kDraft, i);
  }
  // Four standard errors: deviations are 1, sqrt(20) and pi / sqrt(6) a draw.
  const double root = std::sqrt(double{kDraws});
  EXPECT_NEAR(exponential_sum / kDraws, 1.0, 4.0 / root);
  EXPECT_NEAR(exponential_squares / kDraws, 2.0, 4.0 * std::sqrt(20.0) / root);
  EXPECT_NEAR(gumbel_sum / kDraws, 0.57721566490153286, 4.0 * 1.2825 / root);
}

}  // namespace
}  // namespace peregrine
