// The choice of prompt rows beside decoding, on steps of made-up lengths.
#include "engine/prefill_pace.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace peregrine::test {
namespace {

constexpr int kMaxRows = 128;

// Runs steps whose time is a function of their prompt rows; returns the rows of the last chunk.
int settle(PrefillPace& pace, int steps, const std::function<double(int)>& step_us,
           int decoding = 4, int reading = 1) {
  int rows = 0;
  for (int64_t number = 0; number < steps; ++number) {
    const int now = pace.rows(number);
    pace.record({.prompt_rows = now, .us = step_us(now), .decoding = decoding, .reading = reading});
    if (now > 0) rows = now;
  }
  return rows;
}

TEST(PrefillPace, FillsTheAllowance) {
  PrefillPace pace(kMaxRows);
  EXPECT_EQ(settle(pace, 1000, [](int rows) { return 1000 + 20.5 * rows; }), 24);
}

// As many first tokens wait as next ones: nothing changes. Three times as many: three times the
// allowance, and the batch fills.
TEST(PrefillPace, ReadsFasterWhereMoreReadThanDecode) {
  const auto step_us = [](int rows) { return 1000 + 20.5 * rows; };
  PrefillPace pace(kMaxRows);
  EXPECT_EQ(settle(pace, 1000, step_us, 4, 4), 24);
  EXPECT_EQ(settle(pace, 1000, step_us, 4, 12), 73);
  EXPECT_EQ(settle(pace, 1000, step_us, 12, 4), 24);
  EXPECT_EQ(settle(pace, 2000, step_us, 1, 255), kMaxRows);
}

TEST(PrefillPace, RunsOneRowWhereEvenThatIsTooSlow) {
  PrefillPace pace(kMaxRows);
  EXPECT_EQ(settle(pace, 1000, [](int rows) { return 1000 + 3000 * rows; }), 1);
}

TEST(PrefillPace, StopsAtTheLargestStep) {
  PrefillPace pace(kMaxRows);
  EXPECT_EQ(settle(pace, 2000, [](int) { return 1000; }), kMaxRows);
}

// The first row of a step costs more than the others: the mean cost falls as rows are added.
TEST(PrefillPace, GrowsPastADearFirstRow) {
  PrefillPace pace(kMaxRows);
  settle(pace, 1000, [](int rows) { return 1000 + 3000 * rows; });
  EXPECT_EQ(settle(pace, 2000, [](int rows) { return rows == 0 ? 1000 : 1200 + 29.9 * rows; }), 9);
}

TEST(PrefillPace, FollowsDecodingThatGetsSlower) {
  PrefillPace pace(kMaxRows);
  settle(pace, 1000, [](int rows) { return 1000 + 99 * rows; });
  EXPECT_EQ(settle(pace, 1000, [](int rows) { return 4000 + 80 * rows; }), 25);
}

TEST(PrefillPace, FollowsRowsThatGetDearer) {
  PrefillPace pace(kMaxRows);
  settle(pace, 1000, [](int rows) { return 1000 + 10 * rows; });
  EXPECT_EQ(settle(pace, 1000, [](int rows) { return 1000 + 80 * rows; }), 6);
}

// Nothing is known of more rows than steps held.
TEST(PrefillPace, ShortPromptsDoNotRaiseIt) {
  PrefillPace pace(kMaxRows);
  for (int64_t number = 0; number < 1000; ++number)
    pace.record({.prompt_rows = std::min(2, pace.rows(number)), .us = 1000});
  EXPECT_EQ(pace.rows(1), 8);
}

TEST(PrefillPace, LowersItAfterShortPromptsToo) {
  PrefillPace pace(kMaxRows);
  for (int64_t number = 0; number < 1000; ++number) {
    const int now = std::min(4, pace.rows(number));
    pace.record({.prompt_rows = now, .us = 1000.0 + 400 * now});
  }
  EXPECT_EQ(pace.rows(1), 1);
}

// A shared machine: some steps take far longer for reasons of their own.
TEST(PrefillPace, IgnoresOutliers) {
  PrefillPace pace(kMaxRows);
  std::mt19937 random(5);
  const int rows =
      settle(pace, 5000, [&](int n) { return (1000 + 20.5 * n) * (random() % 8 == 0 ? 20 : 1); });
  EXPECT_GE(rows, 20);
  EXPECT_LE(rows, 24);
}

}  // namespace
}  // namespace peregrine::test
