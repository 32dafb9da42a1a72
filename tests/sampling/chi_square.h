// Pearson's chi-square test with a critical value, for tests of distributions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

namespace peregrine::test {

struct ChiSquare {
  double statistic = 0.0;
  double critical = 0.0;  // exceeded by one true sample in 10,000
  bool passes() const { return statistic < critical; }
};

// `counts` of each outcome against `expected` probabilities (sum 1). An outcome of probability 0
// that occurs fails the test.
inline ChiSquare chi_square(std::span<const int64_t> counts, std::span<const double> expected) {
  double draws = 0.0;
  for (const int64_t count : counts) draws += static_cast<double>(count);
  ChiSquare result;
  int cells = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double mean = expected[i] * draws;
    if (mean <= 0.0) {
      if (counts[i] > 0) result.statistic = INFINITY;
      continue;
    }
    ++cells;
    const double difference = static_cast<double>(counts[i]) - mean;
    result.statistic += difference * difference / mean;
  }
  // Wilson and Hilferty: the cube root of chi-square / k is nearly normal.
  const double k = std::max(1, cells - 1);
  const double z = 3.719;  // upper 1e-4 quantile of the normal distribution
  const double cube = 1.0 - 2.0 / (9.0 * k) + z * std::sqrt(2.0 / (9.0 * k));
  result.critical = k * cube * cube * cube;
  return result;
}

}  // namespace peregrine::test
