// The simulation's arithmetic on cases that can be worked out by hand.
#include "parallel/cluster_model.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/expert_counts.h"

namespace peregrine::test {
namespace {

// Two ranks with two experts each; every row chooses experts 0 and 1, both on rank 0.
TEST(ClusterModel, AddsBytesAndWorkUp) {
  const ClusterModel m{.dim = 320,
                       .expert_width = 100,
                       .active = 2,
                       .rows_a_rank = 3,
                       .link_gb_s = 1,
                       .link_us = 5,
                       .memory_gb_s = 1,
                       .tflop_s = 1e9,
                       .dense_us = 7};
  const std::vector<int32_t> routing = {0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1};
  const SimulatedLayer layer = simulate_layer(m, contiguous_placement(4, 2), routing);
  // Rank 1's three rows: 320 codes, 10 scales, two pairs of 12 bytes; at 1000 bytes a us.
  EXPECT_NEAR(layer.dispatch_us, 5 + 3 * (330 + 24) / 1e3, 1e-9);
  // Two results of 320 bf16 numbers for each.
  EXPECT_NEAR(layer.combine_us, 5 + 3 * 2 * 640 / 1e3, 1e-9);
  // Two experts of 3 * 320 * 100 weights in 17/32 bytes each, read once.
  EXPECT_NEAR(layer.experts_us, 2 * 3 * 320 * 100 * (17.0 / 32) / 1e3, 1e-9);
  EXPECT_NEAR(layer.total_us(), layer.dispatch_us + layer.combine_us + layer.experts_us + 7, 1e-9);
  EXPECT_EQ(layer.slowest_over_mean, 2);  // one rank does everything
}

TEST(ClusterModel, WorkCountsWhereItOutweighsReading) {
  ClusterModel m{.dim = 320,
                 .expert_width = 100,
                 .active = 1,
                 .rows_a_rank = 4,
                 .link_gb_s = 1,
                 .link_us = 5,
                 .memory_gb_s = 1e9,
                 .tflop_s = 1e-3,
                 .dense_us = 0};
  const std::vector<int32_t> routing = {0, 0, 0, 0};
  const SimulatedLayer layer = simulate_layer(m, contiguous_placement(2, 1), routing);
  EXPECT_NEAR(layer.experts_us, 4 * 6.0 * 320 * 100 / 1e3, 1e-6);
  EXPECT_EQ(layer.communication_us(), 0);  // one rank
}

TEST(ClusterModel, CopiesTakeTurns) {
  // Expert 0 on both ranks, expert 1 and 2 on one each.
  const ExpertPlacement p{.slots_per_rank = 2, .expert_of_slot = {0, 1, 0, 2}, .copies = {2, 1, 1}};
  const ClusterModel m{.active = 1, .rows_a_rank = 4};
  const std::vector<int32_t> routing = {0, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_EQ(simulate_layer(m, p, routing).slowest_over_mean, 1);
}

TEST(ClusterModel, RoutingFollowsTheCounts) {
  const std::vector<double> counts = {1, 0, 3, 4};
  const auto routing = sample_routing(counts, 40000, 1, 3);
  const auto share = [&](int expert) {
    return static_cast<double>(std::count(routing.begin(), routing.end(), expert)) / 40000;
  };
  // Six standard deviations of a share of 40,000 draws are at most 6 * 0.5 / 200 = 0.015.
  EXPECT_NEAR(share(0), 0.125, 0.015);
  EXPECT_EQ(share(1), 0);
  EXPECT_NEAR(share(2), 0.375, 0.015);
  EXPECT_NEAR(share(3), 0.5, 0.015);
  // Distinct and ascending, also when some are never drawn.
  const auto all = sample_routing(counts, 10, 4, 3);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], static_cast<int32_t>(i % 4));
}

TEST(ClusterModel, BalancingHelpsASkewedLoad) {
  const auto counts = zipf_counts(384, 1.0, 1);
  const ClusterModel m{.rows_a_rank = 64};
  const auto routing = sample_routing(counts, 64 * 64, m.active, 5);
  const SimulatedLayer plain = simulate_layer(m, contiguous_placement(384, 64), routing);
  const SimulatedLayer balanced =
      simulate_layer(m, plan_experts(counts, {.replicas = 448, .ranks = 64}), routing);
  EXPECT_LT(balanced.slowest_over_mean, plain.slowest_over_mean / 2);
  EXPECT_LT(balanced.total_us(), plain.total_us());
}

}  // namespace
}  // namespace peregrine::test
