// Draft length by confidence, the cost model and its running estimates.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "sampling/draft_cost.h"
#include "sampling/draft_length.h"

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

DraftCosts linear(double base_us, double row_us, double draft_us) {
  return {.step_us = [=](int rows) { return base_us + row_us * rows; }, .draft_us = draft_us};
}

const std::vector<double> kGood = {0.8, 0.64, 0.5, 0.4, 0.33};

TEST(DraftCost, FreeRowsTakeEveryDraft) {
  EXPECT_EQ(plan_drafts(linear(1000, 0, 10), kGood).drafts, 5);
  EXPECT_EQ(plan_drafts(linear(1000, 0, 10), kGood).threshold, 0.0);
}

TEST(DraftCost, RowsAsDearAsStepsTakeNone) {
  // A verified row costs a whole step: at best the same rate, minus the drafter pass.
  EXPECT_EQ(plan_drafts(linear(0, 1000, 10), kGood).drafts, 0);
}

TEST(DraftCost, ADearDrafterOrBadDraftsTakeNone) {
  EXPECT_EQ(plan_drafts(linear(1000, 10, 5000), kGood).drafts, 0);
  EXPECT_EQ(plan_drafts(linear(1000, 10, 100), std::vector<double>{0.05, 0.01, 0.0}).drafts, 0);
  EXPECT_EQ(plan_drafts(linear(1000, 10, 100), {}).drafts, 0);
}

TEST(DraftCost, PicksTheBestRate) {
  // Tokens 1, 1.8, 2.44, 2.94, 3.34, 3.67 over 400, 700, 900, 1100, 1300, 1500 microseconds:
  // the rates are 2.5, 2.571, 2.711, 2.673, 2.569, 2.447 a millisecond.
  const DraftPlan plan = plan_drafts(linear(200, 200, 100), kGood);
  EXPECT_EQ(plan.drafts, 2);
  EXPECT_NEAR(plan.threshold, 2.44 / 900 * 200, 1e-12);
}

TEST(DraftCost, SeesPastAnExpensiveFirstRow) {
  // One row has a fast path; from two rows on the time is flat. One draft does not pay, four do.
  const DraftCosts costs{.step_us = [](int rows) { return rows == 1 ? 500.0 : 1000.0; },
                         .draft_us = 0.0};
  EXPECT_EQ(plan_drafts(costs, kGood).drafts, 5);
  EXPECT_EQ(plan_drafts(costs, std::span(kGood).first(1)).drafts, 0);
}

TEST(DraftCost, CutsByConfidenceWithinThePlan) {
  const DraftPlan plan{.drafts = 3, .threshold = 0.5};
  EXPECT_EQ(cut_drafts(plan, scores_for({0.9, 0.8, 0.7, 0.6})), 3);
  EXPECT_EQ(cut_drafts(plan, scores_for({0.9, 0.4, 0.3})), 1);
  EXPECT_EQ(cut_drafts(plan, scores_for({0.4})), 0);
  EXPECT_EQ(cut_drafts({}, scores_for({0.9})), 0);
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
  EXPECT_NEAR(times.estimate(1), 110, 1e-9);
  for (int i = 0; i < 100; ++i) times.record(1, 200);
  EXPECT_NEAR(times.estimate(1), 200, 0.1);
}

TEST(SurvivalEstimate, LearnsConditionalChances) {
  SurvivalEstimate estimate(3);
  EXPECT_EQ(estimate.survival(), (std::vector<double>{0.5, 0.25, 0.125}));
  // Draft 0 always stands, draft 1 never; draft 2 is never judged.
  for (int i = 0; i < 200; ++i) estimate.record(3, 1);
  const std::vector<double> survival = estimate.survival();
  EXPECT_NEAR(survival[0], 1.0, 1e-3);
  EXPECT_NEAR(survival[1], 0.0, 1e-3);
  EXPECT_NEAR(survival[2], 0.5 * survival[1], 1e-12);
}

TEST(SurvivalEstimate, FullAcceptanceAndShortBlocks) {
  SurvivalEstimate estimate(2);
  for (int i = 0; i < 200; ++i) estimate.record(1, 1);
  EXPECT_NEAR(estimate.survival()[0], 1.0, 1e-3);
  EXPECT_NEAR(estimate.survival()[1], 0.5, 1e-3);  // slot 1 was never verified
}

}  // namespace
}  // namespace peregrine
