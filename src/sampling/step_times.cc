#include "sampling/step_times.h"

#include <algorithm>
#include <iterator>

namespace peregrine {
namespace {

// Weights of a new time in the estimate of all counts and of its own.
constexpr double kScaleShare = 0.1;
constexpr double kShapeShare = 0.05;

}  // namespace

void StepTimes::record(int rows, double microseconds) {
  const auto [found, inserted] = shape_.try_emplace(rows, microseconds / scale_);
  if (inserted) return;
  const double ratio = microseconds / (scale_ * found->second);
  if (ratio < 0.5) {
    found->second *= ratio;
    return;
  }
  const double change = std::min(ratio, 2.0) - 1;
  scale_ *= 1 + kScaleShare * change;
  found->second *= 1 + kShapeShare * change;
}

double StepTimes::estimate(int rows) const {
  const auto above = shape_.lower_bound(rows);
  if (above != shape_.end() && above->first == rows) return scale_ * above->second;
  if (shape_.size() == 1) return scale_ * shape_.begin()->second;
  // The two measured counts around `rows`, or the two nearest on its one side.
  auto right = above;
  if (right == shape_.end()) --right;
  if (right == shape_.begin()) ++right;
  const auto left = std::prev(right);
  const double slope = (right->second - left->second) / (right->first - left->first);
  const bool inside = left->first < rows && rows < right->first;
  if (inside) return scale_ * (left->second + slope * (rows - left->first));
  // Noise may give a falling line; outside the measurements it must not promise free rows, nor a
  // time near zero.
  const auto& edge = rows < left->first ? *left : *right;
  const double continued = edge.second + std::max(slope, 0.0) * (rows - edge.first);
  return scale_ * std::max(continued, 0.1 * edge.second);
}

}  // namespace peregrine
