#include "engine/prefill_pace.h"

#include <algorithm>

namespace peregrine {

double PrefillPace::Recent::median() const {
  auto sorted = values_;
  const auto middle = sorted.begin() + sorted.size() / 2;
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

void PrefillPace::record(const Measured& step) {
  if (step.prompt_rows == 0) {
    alone_.add(step.us);
    return;
  }
  if (!alone_.full()) return;
  cost_.add((step.us - alone_.median()) / step.prompt_rows);
  all_full_ = all_full_ && step.prompt_rows >= rows_;
  if (!cost_.full()) return;
  const double crowding = static_cast<double>(step.reading) / step.decoding;
  choose(cost_.median(), 1 + (kSlowdown - 1) * std::max(1.0, crowding));
  cost_.clear();
  all_full_ = true;
}

// As many rows as their mean cost allows. That cost falls with their number, so that more than now
// are tried in steps of a quarter, and only when steps held as many as they might.
void PrefillPace::choose(double cost_us, double slowdown) {
  const double allowed_us = (slowdown - 1) * alone_.median();
  const int most = all_full_ ? std::min(rows_ + std::max(1, rows_ / 4), max_rows_) : rows_;
  rows_ = cost_us * most <= allowed_us ? most : std::max(1, static_cast<int>(allowed_us / cost_us));
}

}  // namespace peregrine
