// Draft length by confidence, and the choice by measured times and gains.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "sampling/draft_choice.h"
#include "sampling/draft_length.h"
#include "sampling/step_times.h"

namespace peregrine {
namespace {

// Scores whose survival products are the given ones.
std::vector<float> scores_for(const std::vector<double>& survival) {
  std::vector<float> scores;
  double before = 1.0;
  for (const double s : survival) {
    const double c = s / before;
    scores.push_back(static_cast<float>(std::log(c / (1 - c))));
    before = s;
  }
  return scores;
}

TEST(DraftLength, SurvivalIsTheRunningProductOfSigmoids) {
  const std::vector<double> survival = survival_from_scores(std::vector<float>{0, 0, 1000, -1000});
  EXPECT_EQ(survival[0], 0.5);
  EXPECT_EQ(survival[1], 0.25);
  EXPECT_EQ(survival[2], 0.25);
  EXPECT_EQ(survival[3], 0.0);
}

TEST(DraftLength, LastTwoSlotsUseHalfAndAQuarter) {
  EXPECT_EQ(slot_threshold(0, 5, 0.4), 0.4);
  EXPECT_EQ(slot_threshold(2, 5, 0.4), 0.4);
  EXPECT_EQ(slot_threshold(3, 5, 0.4), 0.2);
  EXPECT_EQ(slot_threshold(4, 5, 0.4), 0.1);
  EXPECT_EQ(slot_threshold(0, 3, 0.4), 0.4);
  EXPECT_EQ(slot_threshold(1, 3, 0.4), 0.2);
  EXPECT_EQ(slot_threshold(0, 2, 0.4), 0.4);
  EXPECT_EQ(slot_threshold(1, 2, 0.4), 0.4);
}

TEST(DraftLength, StopsAtTheFirstSlotBelowItsThreshold) {
  const std::vector<float> scores = scores_for({0.9, 0.7, 0.35, 0.2, 0.12});
  EXPECT_EQ(draft_length(scores, 0.3), 5);   // 0.2 >= 0.15 and 0.12 >= 0.075
  EXPECT_EQ(draft_length(scores, 0.36), 2);  // a later pass does not count
  EXPECT_EQ(draft_length(scores, 0.95), 0);
  EXPECT_EQ(draft_length(scores, 0.0), 5);
  EXPECT_EQ(draft_length({}, 0.3), 0);
  EXPECT_EQ(draft_length(scores_for({0.9, 0.25}), 0.3), 1);  // two slots: no discount
}

TEST(DraftLength, EqualToTheThresholdIsNotBelowIt) {
  EXPECT_EQ(draft_length(std::vector<float>{0}, 0.5), 1);
  EXPECT_EQ(draft_length(std::vector<float>{0}, std::nextafter(0.5, 1.0)), 0);
}

TEST(DraftLength, ANanScoreEndsTheBlock) {
  EXPECT_EQ(draft_length(std::vector<float>{5, std::numeric_limits<float>::quiet_NaN(), 5}, 0.0),
            1);
}

// A text whose drafts stand with one chance each, on a machine where a pass costs 0.35 tokens and a
// row 0.25. Confidences tell the chance, times `optimism`.
struct World {
  double chance = 0.5;
  double optimism = 1;
  int drafts = 5;
  DraftPrices prices{.pass = 0.35, .rows = {0.25, 0.25, 0.25, 0.25, 0.25}};
};

struct Tally {
  double tokens = 0, cost = 0;  // cost: in steps without drafts
  int passes = 0, steps = 0;
  double rate() const { return tokens / cost; }
};

// Runs an answer of so many steps as the engine would.
void answer(const World& world, int steps, DraftLedger& ledger, std::mt19937_64& random,
            Tally& run) {
  DraftChoice choice;
  for (int step = 0; step < steps; ++step) {
    ++run.steps;
    double cost = 1;
    int accepted = 0;
    if (choice.worthwhile(ledger, world.prices)) {
      ++run.passes;
      DraftPass pass;
      const double told = std::min(1.0, world.chance * world.optimism);
      double survival = 1;
      int verified = 0;
      for (; verified < world.drafts; ++verified) {
        survival *= told;
        if (survival < choice.threshold(world.prices, verified)) break;
        pass.expected += survival;
      }
      while (accepted < verified && static_cast<double>(random() >> 11) * 0x1p-53 < world.chance)
        ++accepted;
      cost += world.prices.pass + verified * world.prices.rows[0];
      pass.accepted = accepted;
      pass.cost = cost;
      choice.record(pass, ledger);
    }
    ledger.earn(cost);
    run.tokens += 1 + accepted;
    run.cost += cost;
  }
}

Tally answers(const World& world, int count, int steps, DraftLedger& ledger) {
  std::mt19937_64 random(1);
  Tally run;
  for (int i = 0; i < count; ++i) answer(world, steps, ledger, random, run);
  return run;
}

TEST(DraftChoice, GoodDraftsAreUsedNearlyAlways) {
  DraftLedger ledger;
  const Tally run = answers({.chance = 0.95}, 40, 20, ledger);
  EXPECT_GT(run.passes, run.steps * 98 / 100);
}

// What drafts may cost where they gain nothing: the saved-up allowance once, and its share of time.
TEST(DraftChoice, BadDraftsCostTheirAllowanceOnly) {
  for (const int steps : {3, 25, 2000}) {
    DraftLedger ledger;
    const int count = 10000 / steps;
    const Tally run = answers({.chance = 0.02}, count, steps, ledger);
    EXPECT_GT(run.rate(), 0.99 - 4.5 / run.cost) << steps;
    EXPECT_GT(run.passes, run.steps / 100) << steps << ": nobody looks whether the text changed";
  }
}

// Also when the confidences promise a multiple of what stands.
TEST(DraftChoice, ConfidencesAreCorrected) {
  DraftLedger ledger;
  const World world{.chance = 0.3, .optimism = 3};
  answers(world, 500, 20, ledger);
  // A confident block of five promises 3.7 drafts, of which 0.43 stand.
  EXPECT_NEAR(ledger.calibration(), 0.12, 0.06);
  EXPECT_GT(answers(world, 100, 20, ledger).rate(), 0.965);  // a pass costs more than its price
}

// A text that turns bad behind a good one costs no more than the price of noticing, and one that
// turns good is found.
TEST(DraftChoice, FollowsTheText) {
  DraftLedger ledger;
  const double good = answers({.chance = 0.9}, 40, 20, ledger).rate();
  EXPECT_GT(answers({.chance = 0.02}, 20, 20, ledger).rate(), 0.97);
  EXPECT_GT(answers({.chance = 0.9}, 20, 20, ledger).rate(), 0.97 * good);
}

TEST(DraftChoice, ARowHasToEarnItsPrice) {
  DraftChoice choice;
  DraftLedger ledger;
  EXPECT_EQ(choice.threshold({.pass = 0.1, .rows = {0}}, 0), 0);
  EXPECT_EQ(choice.threshold({.pass = 0.1, .rows = {0.25}}, 0), 0.25);
  // An experiment looks at drafts whatever rows are said to cost.
  EXPECT_EQ(choice.threshold({.pass = 0.1, .rows = {7}}, 0), 0.3);
  // At 1.5 times the plain rate, time is worth more.
  for (int i = 0; i < 200; ++i) choice.record({.expected = 2, .accepted = 2, .cost = 2}, ledger);
  EXPECT_NEAR(choice.threshold({.pass = 0.1, .rows = {0.25}}, 0), 0.375, 1e-6);
  EXPECT_EQ(choice.threshold({.pass = 0.1, .rows = {7}}, 0), 1);
}

TEST(DraftPrices, LaterRowsMayPayForTheFirst) {
  StepTimes times;
  const double us[] = {100, 180, 190, 200, 290, 310};
  for (int rows = 1; rows <= 6; ++rows) times.record(rows, us[rows - 1]);
  const DraftPrices prices = draft_prices(times, 1, 5, 0.01, 0.5);
  EXPECT_EQ(prices.pass, 0.5);
  const double expected[] = {100.0 / 3, 10, 10, 55, 20};
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(prices.rows[i], expected[i] * 0.01, 1e-9) << i;
}

TEST(StepTimes, InterpolatesAndContinues) {
  StepTimes times;
  EXPECT_TRUE(times.empty());
  times.record(2, 100);
  EXPECT_EQ(times.estimate(1), 100);
  EXPECT_EQ(times.estimate(9), 100);
  times.record(4, 140);
  EXPECT_EQ(times.estimate(2), 100);
  EXPECT_EQ(times.estimate(3), 120);
  EXPECT_EQ(times.estimate(1), 80);
  EXPECT_EQ(times.estimate(6), 180);
  times.record(8, 300);
  EXPECT_EQ(times.estimate(6), 220);
  EXPECT_EQ(times.estimate(1), 80);
  EXPECT_EQ(times.estimate(9), 340);
}

TEST(StepTimes, FallingMeasurementsPromiseNothingOutside) {
  StepTimes times;
  times.record(2, 100);
  times.record(4, 90);
  EXPECT_EQ(times.estimate(8), 90);
  EXPECT_EQ(times.estimate(1), 100);
  times.record(6, 10000);
  times.record(7, 20000);
  EXPECT_EQ(times.estimate(8), 30000);
}

TEST(StepTimes, FollowsDriftSlowly) {
  StepTimes times;
  times.record(1, 100);
  times.record(1, 200);
  EXPECT_NEAR(times.estimate(1), 110 * 1.05, 1e-9);
  for (int i = 0; i < 100; ++i) times.record(1, 200);
  EXPECT_NEAR(times.estimate(1), 200, 0.1);
}

TEST(StepTimes, AStepMovesTheOthers) {
  StepTimes times;
  times.record(1, 100);
  times.record(6, 300);
  for (int i = 0; i < 200; ++i) times.record(1, 150);
  EXPECT_NEAR(times.estimate(1), 150, 0.1);
  // Two thirds of the change is the machine's, a third the count's own.
  EXPECT_NEAR(times.estimate(6), 300 * std::pow(1.5, 2.0 / 3), 3);
}

TEST(StepTimes, AnInterruptedStepHardlyCounts) {
  StepTimes times;
  times.record(1, 100);
  times.record(1, 50000);
  EXPECT_NEAR(times.estimate(1), 110 * 1.05, 1e-9);
  // As the first one it would: the next that is not replaces it.
  times.record(2, 50000);
  times.record(2, 150);
  EXPECT_EQ(times.estimate(2), 150);
}

}  // namespace
}  // namespace peregrine
