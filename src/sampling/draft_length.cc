#include "sampling/draft_length.h"

#include <algorithm>
#include <cmath>
#include <numeric>

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

double expected_drafts(std::span<const float> scores, int count) {
  const auto survival = survival_from_scores(scores.first(static_cast<size_t>(count)));
  return std::accumulate(survival.begin(), survival.end(), 0.0);
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

std::vector<size_t> share_draft_rows(std::span<const std::vector<double>> survival, size_t budget) {
  struct Draft {
    double survival;
    size_t block;
  };
  std::vector<Draft> drafts;
  for (size_t block = 0; block < survival.size(); ++block)
    for (const double value : survival[block]) drafts.push_back({value, block});
  std::stable_sort(drafts.begin(), drafts.end(),
                   [](const Draft& a, const Draft& b) { return a.survival > b.survival; });
  if (drafts.size() > budget) drafts.resize(budget);
  std::vector<size_t> kept(survival.size(), 0);
  for (const Draft& draft : drafts) ++kept[draft.block];
  return kept;
}

}  // namespace peregrine
