#include "engine/prefill_pace.h"

#include <algorithm>

namespace peregrine {

double PrefillPace::Recent::median() const {
  auto sorted = values_;
  const auto middle = sorted.begin() + sorted.size() / 2;
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

void PrefillPace::record(int prompt_rows, double us) {
  if (prompt_rows == 0) {
    alone_.add(us);
    return;
  }
  if (!alone_.full()) return;
  cost_.add((us - alone_.median()) / prompt_rows);
  all_full_ = all_full_ && prompt_rows >= rows_;
  if (!cost_.full()) return;
  choose(cost_.median());
  cost_.clear();
  all_full_ = true;
}

// As many rows as their mean cost allows. That cost falls with their number, so that more than now
// are tried in steps of a quarter, and only when steps held as many as they might.
void PrefillPace::choose(double cost_us) {
  const double allowed_us = (kSlowdown - 1) * alone_.median();
  const int most = all_full_ ? std::min(rows_ + std::max(1, rows_ / 4), max_rows_) : rows_;
  rows_ = cost_us * most <= allowed_us ? most : std::max(1, static_cast<int>(allowed_us / cost_us));
}

}  // namespace peregrine
