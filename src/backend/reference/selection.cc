#include "backend/reference/selection.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace peregrine::reference {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

std::vector<int32_t> best_indices(std::span<float> scores, int64_t k) {
  for (float& score : scores) {
    if (std::isnan(score)) score = -kInfinity;
  }
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto kept = std::min(k, static_cast<int64_t>(order.size()));
  const auto better = [&](int32_t a, int32_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  };
  if (kept < static_cast<int64_t>(order.size())) {
    std::nth_element(order.begin(), order.begin() + kept, order.end(), better);
    order.resize(static_cast<size_t>(kept));
  }
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<int32_t> candidate_blocks(std::span<const float> scores, int block_rows, int64_t k) {
  if (scores.empty()) return {};
  const size_t blocks = (scores.size() + block_rows - 1) / block_rows;
  std::vector<float> block_scores(blocks, -kInfinity);
  for (size_t row = 0; row < scores.size(); ++row) {
    // A NaN score compares false and leaves the block as it is.
    float& best = block_scores[row / block_rows];
    if (scores[row] > best) best = scores[row];
  }
  block_scores.back() = kInfinity;
  std::vector<int32_t> chosen = best_indices(block_scores, k);
  std::erase_if(chosen, [&](int32_t block) { return block_scores[block] == -kInfinity; });
  return chosen;
}

}  // namespace peregrine::reference
