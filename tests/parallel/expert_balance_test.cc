// When experts move: what the ranks agree on, where experts are afterwards, and what cannot be.
#include "parallel/expert_balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/fail.h"
#include "thread_group.h"

namespace peregrine::test {
namespace {

constexpr int kRanks = 2, kExperts = 8;

// The expert's number stands in its weights.
ReadExpert numbered(int layer, int expert) {
  ReadExpert read{.bytes = 10};
  read.weights.w1.out = 100 * layer + expert;
  return read;
}

std::vector<LayerExperts> in_order(int rank, int layers) {
  std::vector<LayerExperts> made(static_cast<size_t>(layers));
  for (int l = 0; l < layers; ++l) {
    LayerExperts& layer = made[static_cast<size_t>(l)];
    layer.turns.resize(kExperts);
    for (int e = 0; e < kExperts; ++e) {
      const int owner = e * kRanks / kExperts;
      layer.copies.push_back({{owner, e % (kExperts / kRanks)}});
      if (owner != rank) continue;
      layer.expert_of_slot.push_back(e);
      layer.weights.push_back(numbered(l, e).weights);
    }
  }
  return made;
}

// Steps in which expert 0 of layer 0 is chosen ten times as often as each other one and layer 1 is
// not used. All ranks switch in the same step; what each then holds is what all believe.
TEST(ExpertBalance, BusyExpertGetsACopyInTheSameStepEverywhere) {
  ThreadGroup group(kRanks);
  std::vector<std::vector<LayerExperts>> after(kRanks);
  std::vector<int64_t> switched(kRanks, -1);
  std::vector<BalanceStats> stats(kRanks);
  const auto errors = ThreadGroup::run(kRanks, [&](int rank) {
    const auto c = group.open(rank, 0);
    ExpertBalance balance(*c, {kExperts, kExperts}, numbered,
                          {.window_steps = 5, .interval_steps = 10, .redundant = 2});
    auto layers = in_order(rank, 2);
    for (int64_t step = 0; switched[static_cast<size_t>(rank)] < 0; ++step) {
      const std::byte mine[] = {static_cast<std::byte>(balance.state())};
      std::vector<uint8_t> states;
      for (const Bytes& theirs : c->all_gather({.tag = "pass"}, mine))
        states.push_back(static_cast<uint8_t>(theirs.at(0)));
      balance.begin_step(states, layers);
      if (balance.stats().rearrangements > 0) switched[static_cast<size_t>(rank)] = step;
      std::vector<int32_t> chosen(10, 0);
      for (int e = 1; e < kExperts; ++e) chosen.push_back(e);
      balance.count(0, chosen);
      balance.count_computed(0, rank == 0 ? 26 : 8);
    }
    after[static_cast<size_t>(rank)] = layers;
    stats[static_cast<size_t>(rank)] = balance.stats();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_EQ(switched[0], switched[1]);
  EXPECT_GE(switched[0], 10);
  for (size_t rank = 0; rank < kRanks; ++rank) {
    const LayerExperts& layer = after[rank][0];
    ASSERT_EQ(layer.copies.size(), size_t{kExperts});
    EXPECT_EQ(layer.copies[0].size(), 3u);  // both redundant slots went to the busy one
    int copies = 0;
    for (size_t e = 0; e < kExperts; ++e)
      for (const auto& copy : layer.copies[e]) {
        ++copies;
        const LayerExperts& there = after[static_cast<size_t>(copy.rank)][0];
        const auto slot = static_cast<size_t>(copy.slot);
        EXPECT_EQ(there.expert_of_slot.at(slot), static_cast<int32_t>(e));
        EXPECT_EQ(there.weights.at(slot).w1.out, static_cast<int64_t>(e));
      }
    EXPECT_EQ(copies, kExperts + 2);
    // The unused layer stays as it was.
    EXPECT_EQ(after[rank][1].expert_of_slot, in_order(static_cast<int>(rank), 2)[1].expert_of_slot);
    EXPECT_DOUBLE_EQ(stats[rank].slowest_over_mean.at(0), 26.0 / 17);
    EXPECT_DOUBLE_EQ(stats[rank].slowest_over_mean.at(1), 1);
    EXPECT_EQ(stats[rank].bytes_read, 10 * static_cast<uint64_t>(stats[rank].experts_read));
  }
  EXPECT_GT(stats[0].experts_read + stats[1].experts_read, 0);
}

TEST(ExpertBalance, CopiesTakeTurns) {
  LayerExperts layer;
  layer.copies = {{{0, 0}, {1, 3}, {2, 1}}};
  layer.turns = {1};
  std::vector<int> ranks;
  for (int i = 0; i < 6; ++i) ranks.push_back(layer.next_copy(0).rank);
  EXPECT_EQ(ranks, (std::vector<int>{1, 2, 0, 1, 2, 0}));
}

TEST(ExpertBalance, UnreadableExpertEndsTheGroupWithASentence) {
  ThreadGroup group(kRanks);
  const auto errors = ThreadGroup::run(kRanks, [&](int rank) {
    const auto c = group.open(rank, 0, /*timeout_seconds=*/0.5);
    const ExpertReader reader = [rank](int layer, int expert) {
      if (rank == 1) fail(ErrorKind::kIo, "weights.safetensors: gone");
      return numbered(layer, expert);
    };
    ExpertBalance balance(*c, {kExperts}, reader,
                          {.window_steps = 1, .interval_steps = 1, .redundant = kExperts});
    auto layers = in_order(rank, 1);
    while (true) {
      balance.count(0, std::vector<int32_t>{0});
      const std::byte mine[] = {static_cast<std::byte>(balance.state())};
      std::vector<uint8_t> states;
      for (const Bytes& theirs : c->all_gather({.tag = "pass"}, mine))
        states.push_back(static_cast<uint8_t>(theirs.at(0)));
      balance.begin_step(states, layers);
    }
  });
  EXPECT_NE(errors[1].find("its experts cannot be re-arranged: weights.safetensors: gone"),
            std::string::npos)
      << errors[1];
  EXPECT_NE(errors[0].find("rank 1 has not sent its part"), std::string::npos) << errors[0];
}

TEST(ExpertBalance, RefusesWhatCannotBe) {
  ThreadGroup group(2);
  const auto c = group.open(0, 0);
  const auto refused = [&](const BalanceOptions& options) {
    try {
      ExpertBalance(*c, {kExperts}, numbered, options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(refused({.window_steps = 20, .interval_steps = 10})
                .find("re-arranged every 10 steps by the counts of 20"),
            std::string::npos);
  EXPECT_NE(refused({.redundant = 9}).find("9 redundant copies of 8 experts on 2 ranks"),
            std::string::npos);
  EXPECT_EQ(refused({.interval_steps = 0, .redundant = 8}), "");
}

}  // namespace
}  // namespace peregrine::test
