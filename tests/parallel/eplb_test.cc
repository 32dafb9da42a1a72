// Placements of experts: the published example, structure under random counts, and the balance that
// skewed loads reach.
#include "parallel/eplb.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "parallel/expert_counts.h"
#include "peregrine/error.h"
#include "support/fixtures.h"

namespace peregrine::test {
namespace {

using Slots = std::vector<int32_t>;

// The example in the README of github.com/deepseek-ai/EPLB: two layers, hierarchical.
TEST(Eplb, GivesThePublishedPlacement) {
  const EplbShape shape{.replicas = 16, .groups = 4, .nodes = 2, .ranks = 8};
  const std::vector<double> first = {90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86};
  const std::vector<double> second = {20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27};
  EXPECT_EQ(plan_experts(first, shape).expert_of_slot,
            (Slots{5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1}));
  EXPECT_EQ(plan_experts(second, shape).expert_of_slot,
            (Slots{7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1}));
}

TEST(Eplb, PlansAreCompleteAndNoCopyIsWorthMoreElsewhere) {
  const bool holds = rc::check("every slot filled, every expert there, copies greedy", [] {
    const int ranks = *rc::gen::inRange(1, 17), per_rank = *rc::gen::inRange(1, 5);
    const int replicas = ranks * per_rank;
    const int experts = *rc::gen::inRange(1, replicas + 1);
    const auto drawn = *rc::gen::container<std::vector<int>>(static_cast<size_t>(experts),
                                                             rc::gen::inRange(0, 1000));
    const std::vector<double> counts(drawn.begin(), drawn.end());
    const ExpertPlacement p = plan_experts(counts, {.replicas = replicas, .ranks = ranks});
    RC_ASSERT(p.slots_per_rank == per_rank && p.ranks() == ranks);
    std::vector<int32_t> found(counts.size(), 0);
    for (const int32_t e : p.expert_of_slot) ++found[static_cast<size_t>(e)];
    RC_ASSERT(found == p.copies);
    // Greedy: taking a copy away leaves an expert at least as hot as any is now.
    double hottest = 0;
    for (size_t e = 0; e < counts.size(); ++e) hottest = std::max(hottest, counts[e] / p.copies[e]);
    for (size_t e = 0; e < counts.size(); ++e) {
      RC_ASSERT(p.copies[e] >= 1);
      if (p.copies[e] > 1) RC_ASSERT(counts[e] / (p.copies[e] - 1) >= hottest);
    }
    // No load appears or gets lost.
    const PlacementLoad load = placement_load(p, counts);
    const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
    RC_ASSERT(std::abs(std::accumulate(load.ranks.begin(), load.ranks.end(), 0.0) - total) <=
              1e-9 * total);
  });
  EXPECT_TRUE(holds);
}

TEST(Eplb, HierarchicalPlansKeepGroupsOnOneNode) {
  std::mt19937 random(3);
  std::vector<double> counts(64);
  for (double& c : counts) c = static_cast<double>(random() % 1000);
  const ExpertPlacement p =
      plan_experts(counts, {.replicas = 80, .groups = 8, .nodes = 4, .ranks = 16});
  for (int group = 0; group < 8; ++group) {
    std::vector<bool> on(4, false);
    for (size_t slot = 0; slot < p.expert_of_slot.size(); ++slot)
      if (p.expert_of_slot[slot] / 8 == group) on[slot / 20] = true;
    EXPECT_EQ(std::count(on.begin(), on.end(), true), 1) << "group " << group;
  }
  // Where nodes do not divide the groups the plan is the global one.
  EXPECT_EQ(
      plan_experts(counts, {.replicas = 80, .groups = 2, .nodes = 4, .ranks = 16}).expert_of_slot,
      plan_experts(counts, {.replicas = 80, .ranks = 16}).expert_of_slot);
}

std::vector<double> zipf(double s) { return zipf_counts(384, s, 1); }

double balance(const std::vector<double>& counts, int ranks, int redundant_slots_a_rank) {
  const int replicas = 384 + ranks * redundant_slots_a_rank;
  return placement_load(plan_experts(counts, {.replicas = replicas, .ranks = ranks}), counts)
      .slowest_over_mean;
}

// Measured in the published deployment: about 1.09. One redundant slot a rank is enough up to
// s = 1, two beyond it.
TEST(Eplb, BalancesZipfLoads) {
  for (const int ranks : {64, 96, 128}) {
    for (const double s : {0.5, 0.8, 1.0}) EXPECT_LE(balance(zipf(s), ranks, 1), 1.09) << ranks;
    EXPECT_LE(balance(zipf(1.2), ranks, 2), 1.09) << ranks;
    EXPECT_GT(balance(zipf(1.0), ranks, 0), 5) << "nothing to balance in the first place";
  }
}

// The tiny model has 16 experts; its recorded layers are laid side by side until they make 384, so
// the loads are those of a real router but of several layers (tests/data/eplb/README.md).
TEST(Eplb, BalancesRecordedLoads) {
  const ExpertCounts recorded = read_expert_counts(PEREGRINE_TEST_DATA "/eplb/tiny_counts.json");
  ASSERT_EQ(recorded.size(), 10u);
  ASSERT_EQ(recorded.front().size(), 16u);
  const std::vector<double> counts = stretch_counts(recorded, 0, 384);
  for (const int ranks : {64, 96, 128}) EXPECT_LE(balance(counts, ranks, 1), 1.09) << ranks;
}

TEST(Eplb, CountsWhatAChangeMoves) {
  const ExpertPlacement before = contiguous_placement(8, 4);
  EXPECT_EQ(slots_to_move(before, before), 0);
  ExpertPlacement after = before;
  std::swap(after.expert_of_slot[0], after.expert_of_slot[1]);  // within rank 0
  EXPECT_EQ(slots_to_move(before, after), 0);
  std::swap(after.expert_of_slot[0], after.expert_of_slot[7]);  // between ranks 0 and 3
  EXPECT_EQ(slots_to_move(before, after), 2);
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(Eplb, RefusesShapesThatCannotBe) {
  const std::vector<double> counts(12, 1);
  const auto plan = [&](EplbShape shape) { return refusal([&] { plan_experts(counts, shape); }); };
  EXPECT_EQ(plan({.replicas = 8, .ranks = 8}),
            "8 replicas for 12 experts: expected at least one each");
  EXPECT_EQ(plan({.replicas = 16, .ranks = 3}),
            "16 replicas on 3 ranks: every rank has to hold as many");
  EXPECT_EQ(plan({.replicas = 16, .nodes = 3, .ranks = 8}),
            "8 ranks on 3 nodes: every node has to hold as many");
  EXPECT_EQ(plan({.replicas = 16, .groups = 5, .ranks = 8}),
            "12 experts in 5 groups: every group has to be as large");
  const std::vector<double> bad = {1, -2};
  EXPECT_EQ(refusal([&] { plan_experts(bad, {.replicas = 2, .ranks = 1}); }),
            "the count of expert 1 is -2, expected 0 or more");
}

TEST(ExpertCounts, ReadsJsonAndCsvAlike) {
  const ExpertCounts expected = {{1, 2.5, 3}, {4, 0, 6000}};
  EXPECT_EQ(parse_expert_counts("[[1, 2.5, 3], [4, 0, 6e3]]", "x"), expected);
  EXPECT_EQ(parse_expert_counts("{\"tokens\": 9, \"counts\": [[1,2.5,3],[4,0,6000]]}", "x"),
            expected);
  EXPECT_EQ(parse_expert_counts("# comment\n1,2.5,3\r\n\n 4 , 0 ,6e3", "x"), expected);
}

TEST(ExpertCounts, NamesWhatIsWrong) {
  const auto parse = [](std::string_view text) {
    return refusal([&] { parse_expert_counts(text, "f"); });
  };
  EXPECT_EQ(parse(" \n"), "f: empty, expected counts as JSON or CSV");
  EXPECT_EQ(parse("[[1,2],[3]]"), "f: layer 1 has 1 experts, expected 2 as in layer 0");
  EXPECT_EQ(parse("1,2\n3,x"), "f: layer 1, expert 1: expected a number");
  EXPECT_EQ(parse("1,-2"), "f: layer 0, expert 1: the count is -2, expected a number of 0 or more");
  EXPECT_EQ(parse("[[1,\"2\"]]"), "f: layer 0, expert 1: a JSON string, expected a number");
  EXPECT_EQ(parse("{\"count\": []}"), "f: the object has no \"counts\"");
  EXPECT_EQ(parse("[]"), "f: no counts, expected at least one layer and one expert");
  EXPECT_EQ(parse("[[1"), "f: not JSON at byte 4");
  EXPECT_EQ(refusal([] { read_expert_counts("/nonexistent/counts"); }),
            "/nonexistent/counts: cannot read counts (No such file or directory)");
}

}  // namespace
}  // namespace peregrine::test
