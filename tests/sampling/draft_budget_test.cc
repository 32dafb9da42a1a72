// Sharing a step's draft rows among the sequences of a batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "sampling/draft_length.h"

namespace peregrine::test {
namespace {

TEST(DraftBudget, TakesTheHighestSurvivalOverAllBlocks) {
  const std::vector<std::vector<double>> survival = {{0.9, 0.5, 0.1}, {}, {0.8, 0.7, 0.6}, {0.3}};
  using Kept = std::vector<size_t>;
  EXPECT_EQ(share_draft_rows(survival, 0), (Kept{0, 0, 0, 0}));
  EXPECT_EQ(share_draft_rows(survival, 1), (Kept{1, 0, 0, 0}));
  EXPECT_EQ(share_draft_rows(survival, 4), (Kept{1, 0, 3, 0}));
  EXPECT_EQ(share_draft_rows(survival, 6), (Kept{2, 0, 3, 1}));
  EXPECT_EQ(share_draft_rows(survival, 100), (Kept{3, 0, 3, 1}));
}

TEST(DraftBudget, NoDraftLeftOutIsBetterThanOneKept) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::vector<double>> survival(1 + random() % 20);
    size_t total = 0;
    for (auto& block : survival) {
      block.resize(random() % 8);
      double value = 1;
      // Few distinct factors: ties within blocks and between them.
      for (double& entry : block) entry = value *= 0.25 * static_cast<double>(2 + random() % 3);
      total += block.size();
    }
    const size_t budget = random() % 60;
    const auto kept = share_draft_rows(survival, budget);
    EXPECT_EQ(std::accumulate(kept.begin(), kept.end(), size_t{0}), std::min(budget, total));
    double worst_kept = 1, best_left = 0;
    for (size_t block = 0; block < survival.size(); ++block) {
      ASSERT_LE(kept[block], survival[block].size());
      if (kept[block] > 0) worst_kept = std::min(worst_kept, survival[block][kept[block] - 1]);
      if (kept[block] < survival[block].size())
        best_left = std::max(best_left, survival[block][kept[block]]);
    }
    EXPECT_LE(best_left, worst_kept);
  }
}

}  // namespace
}  // namespace peregrine::test
