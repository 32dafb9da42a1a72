// The cost model behind `--draft auto`: how many drafts give the most tokens a second on this
// machine, from measured step times and the chance that drafts survive. Pure arithmetic plus two
// running estimates; the engine measures and asks.
//
// A step that verifies k drafts runs k + 1 rows and emits 1 + survival[0] + .. + survival[k-1]
// tokens on average, survival[i] being the chance that drafts 0..i all stand.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <vector>

namespace peregrine {

struct DraftCosts {
  std::function<double(int rows)> step_us;  // time of a model step with that many rows, > 0
  double draft_us = 0.0;                    // time of one drafter pass
};

struct DraftPlan {
  int drafts = 0;          // 0: do not draft, which also saves the drafter pass
  double threshold = 0.0;  // verify a slot only while its survival is at least this
};

// The number of drafts with the best expected tokens per microsecond, the smallest on ties, from
// survivals known before drafting (SurvivalEstimate). The threshold is what a verified row costs
// on average, in tokens the step could have produced in that time at the planned rate: a slot
// whose confidence falls below it is not worth its row.
DraftPlan plan_drafts(const DraftCosts& costs, std::span<const double> survival);

// After drafting: the leading slots worth verifying, 0..plan.drafts, by the drafter's confidence
// scores (sampling/draft_length.h). Slot i is decided by scores 0..i alone, so verification stays
// lossless; comparing whole blocks by their later scores would not be.
int cut_drafts(const DraftPlan& plan, std::span<const float> scores);

// Running mean of step times by row count. The first value of a row count is taken as it is, later
// ones move it by a fixed share, so slow drift (clocks, neighbours) is followed.
class StepTimes {
 public:
  void record(int rows, double microseconds);
  bool empty() const { return times_.empty(); }

  // Time of a step with `rows` rows: measured, interpolated between the nearest measured counts,
  // or beyond them continued along the nearest two, never falling with more rows. Not callable
  // while empty().
  double estimate(int rows) const;

 private:
  std::map<int, double> times_;
};

// Running mean of the chance that draft i stands given that drafts before it did.
class SurvivalEstimate {
 public:
  // `slots` is the longest block; before any evidence every draft has an even chance.
  explicit SurvivalEstimate(int slots);

  // A step verified `verified` drafts of which the first `accepted` stood.
  void record(int verified, int accepted);

  // survival[i] for plan_drafts(), [slots].
  std::vector<double> survival() const;

 private:
  std::vector<double> conditional_;
  std::vector<int> judged_;  // how often each slot was; early evidence weighs more than the prior
};

}  // namespace peregrine
