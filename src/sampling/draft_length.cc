#include "sampling/draft_length.h"

#include <cmath>

namespace peregrine {

double extend_survival(double survival, float score) {
  return survival / (1.0 + std::exp(-static_cast<double>(score)));
}

std::vector<double> survival_from_scores(std::span<const float> scores) {
  std::vector<double> survival;
  survival.reserve(scores.size());
  double product = 1.0;
  for (const float score : scores) {
    product = extend_survival(product, score);
    survival.push_back(product);
  }
  return survival;
}

double slot_threshold(int slot, int slots, double threshold) {
  if (slots >= 3 && slot == slots - 1) return threshold / 4;
  if (slots >= 3 && slot == slots - 2) return threshold / 2;
  return threshold;
}

int draft_length(std::span<const float> scores, double threshold) {
  const std::vector<double> survival = survival_from_scores(scores);
  const int slots = static_cast<int>(scores.size());
  int length = 0;
  // Written so that a NaN score ends the block.
  while (length < slots &&
         survival[static_cast<size_t>(length)] >= slot_threshold(length, slots, threshold)) {
    ++length;
  }
  return length;
}

}  // namespace peregrine
