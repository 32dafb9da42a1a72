#include "sampling/draft_cost.h"

#include <algorithm>
#include <iterator>

#include "sampling/draft_length.h"

namespace peregrine {
namespace {

constexpr double kTimeShare = 0.1;       // weight of a new step time
constexpr double kSurvivalShare = 0.05;  // weight of one more accepted or rejected draft

}  // namespace

DraftPlan plan_drafts(const DraftCosts& costs, std::span<const double> survival) {
  const double plain_us = costs.step_us(1);
  DraftPlan plan;
  double best_rate = 1.0 / plain_us;
  double tokens = 1.0;
  for (size_t i = 0; i < survival.size(); ++i) {
    const int drafts = static_cast<int>(i) + 1;
    tokens += survival[i];
    const double verify_us = costs.step_us(drafts + 1);
    const double rate = tokens / (verify_us + costs.draft_us);
    if (rate <= best_rate) continue;
    best_rate = rate;
    const double row_us = std::max(0.0, verify_us - plain_us) / drafts;
    plan = {.drafts = drafts, .threshold = std::min(1.0, rate * row_us)};
  }
  return plan;
}

int cut_drafts(const DraftPlan& plan, std::span<const float> scores) {
  const std::vector<double> survival = survival_from_scores(scores);
  const size_t limit = std::min(survival.size(), static_cast<size_t>(plan.drafts));
  size_t kept = 0;
  while (kept < limit && survival[kept] >= plan.threshold) ++kept;
  return static_cast<int>(kept);
}

void StepTimes::record(int rows, double microseconds) {
  const auto [found, inserted] = times_.try_emplace(rows, microseconds);
  if (!inserted) found->second += kTimeShare * (microseconds - found->second);
}

double StepTimes::estimate(int rows) const {
  const auto above = times_.lower_bound(rows);
  if (above != times_.end() && above->first == rows) return above->second;
  if (times_.size() == 1) return times_.begin()->second;
  // The two measured counts around `rows`, or the two nearest on its one side.
  auto right = above;
  if (right == times_.end()) --right;
  if (right == times_.begin()) ++right;
  const auto left = std::prev(right);
  const double slope = (right->second - left->second) / (right->first - left->first);
  const bool inside = left->first < rows && rows < right->first;
  if (inside) return left->second + slope * (rows - left->first);
  // Noise may give a falling line; outside the measurements it must not promise free rows, nor a
  // time near zero.
  const auto& edge = rows < left->first ? *left : *right;
  const double continued = edge.second + std::max(slope, 0.0) * (rows - edge.first);
  return std::max(continued, 0.1 * edge.second);
}

SurvivalEstimate::SurvivalEstimate(int slots)
    : conditional_(static_cast<size_t>(slots), 0.5), judged_(static_cast<size_t>(slots), 0) {}

void SurvivalEstimate::record(int verified, int accepted) {
  // Drafts up to the first rejected one were judged; those behind it say nothing.
  const int judged = std::min({verified, accepted + 1, static_cast<int>(conditional_.size())});
  for (int i = 0; i < judged; ++i) {
    double& chance = conditional_[static_cast<size_t>(i)];
    // The plain mean (the prior counting once) until it has more weight than the running share.
    const double share = std::max(kSurvivalShare, 1.0 / (2 + judged_[static_cast<size_t>(i)]++));
    chance += share * ((i < accepted ? 1.0 : 0.0) - chance);
  }
}

std::vector<double> SurvivalEstimate::survival() const {
  std::vector<double> survival;
  survival.reserve(conditional_.size());
  double product = 1.0;
  for (const double chance : conditional_) survival.push_back(product *= chance);
  return survival;
}

}  // namespace peregrine
