// How long a step with so many rows takes on this machine now: running means, measured by whoever
// runs steps and asked by the choice of draft lengths.
#pragma once

#include <map>

namespace peregrine {

// Running means of times by row count. What slows the machine slows steps of every size, so each
// measurement also moves the estimates of the other counts, which may not have run for long.
// Interruptions only ever make a step longer: a much longer one counts as twice the estimate, a
// much shorter one replaces it.
class StepTimes {
 public:
  void record(int rows, double microseconds);
  bool empty() const { return shape_.empty(); }

  // Time of a step with `rows` rows: measured, interpolated between the nearest measured counts,
  // or beyond them continued along the nearest two, never falling with more rows. Not callable
  // while empty().
  double estimate(int rows) const;

 private:
  double scale_ = 1;             // how slow the machine is now
  std::map<int, double> shape_;  // times by rows, over scale_
};

}  // namespace peregrine
