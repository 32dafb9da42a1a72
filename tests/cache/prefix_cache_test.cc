// The prefix cache in memory: what it finds, what it shares, what it lets go first.
#include "cache/prefix_cache.h"

#include <gtest/gtest.h>

#include <vector>

#include "cache/cache_rig.h"

namespace peregrine::test {
namespace {

constexpr PrefixCacheOptions kExact = {.mode = PrefixCacheMode::kExact};
constexpr PrefixCacheOptions kReplay = {.mode = PrefixCacheMode::kReplay};

PrefixHit lookup(PrefixCache& cache, const Tokens& tokens) {
  return cache.lookup(tokens, static_cast<int64_t>(tokens.size()));
}

TEST(PrefixCache, OffKeepsNothing) {
  CacheRig rig;
  PrefixCache cache(rig.state(), {.mode = PrefixCacheMode::kOff});
  rig.store(cache, sequence(20));
  EXPECT_FALSE(cache.enabled());
  EXPECT_EQ(cache.entries(), 0);
  EXPECT_EQ(lookup(cache, sequence(20)).replay_length, 0);
  EXPECT_EQ(rig.state().pool().used_pages(), 0);
}

TEST(PrefixCache, FindsTheLongestPointAndTheLongestCommonPrefix) {
  CacheRig rig;
  PrefixCache cache(rig.state(), kReplay);
  const Tokens turn1 = sequence(20);
  const Tokens turn2 = joined(turn1, sequence(15, 1));
  rig.store(cache, turn1);
  rig.store(cache, turn2);

  PrefixHit hit = lookup(cache, joined(turn2, sequence(5, 2)));
  EXPECT_EQ(hit.exact_length, 35);
  EXPECT_EQ(hit.replay_length, 35);
  hit = lookup(cache, joined({turn2.begin(), turn2.begin() + 29}, {-1, -2}));
  EXPECT_EQ(hit.exact_length, 20);
  EXPECT_EQ(hit.replay_length, 29);
  hit = cache.lookup(turn2, 34);  // a limit ends both
  EXPECT_EQ(hit.exact_length, 20);
  EXPECT_EQ(hit.replay_length, 34);
  hit = cache.lookup(turn2, 19);
  EXPECT_EQ(hit.exact_length, 0);
  EXPECT_EQ(hit.replay_length, 19);
  EXPECT_EQ(lookup(cache, sequence(20, 9)).replay_length, 0);
  EXPECT_EQ(cache.lookup(turn2, 0).replay_length, 0);
}

TEST(PrefixCache, ExactModeServesPointsOfExactRowsOnly) {
  CacheRig rig;
  PrefixCache cache(rig.state(), kExact);
  rig.store(cache, sequence(20), false);
  EXPECT_EQ(cache.entries(), 0);
  rig.store(cache, sequence(20), true);
  const PrefixHit hit = lookup(cache, joined(sequence(20), {1, 2, 3}));
  EXPECT_EQ(hit.exact_length, 20);
  EXPECT_EQ(hit.replay_length, 0);
  EXPECT_TRUE(hit.rows_exact);
}

TEST(PrefixCache, ReplayedRowsStayMarked) {
  CacheRig rig;
  PrefixCache cache(rig.state(), kReplay);
  const Tokens tokens = sequence(20);
  rig.store(cache, tokens, false, 1);
  EXPECT_FALSE(lookup(cache, tokens).rows_exact);
  rig.store(cache, tokens, true);  // outranks
  EXPECT_TRUE(lookup(cache, tokens).rows_exact);
  rig.store(cache, tokens, false, 2);  // does not
  EXPECT_TRUE(lookup(cache, tokens).rows_exact);
  EXPECT_EQ(cache.entries(), 1);
  const int slot = rig.state().acquire();
  ASSERT_TRUE(cache.attach(tokens, 20, true, slot));
  EXPECT_EQ(rig.rows(slot, 1, 20), rig.expected_rows(tokens, 1, 20));
}

TEST(PrefixCache, AttachSharesPagesUntilTheyAreWritten) {
  CacheRig rig;
  PrefixCache cache(rig.state(), kReplay);
  StateStore& state = rig.state();
  const Tokens tokens = sequence(21);
  rig.store(cache, tokens);
  const int64_t held = cache.pages();
  EXPECT_EQ(held, state.pages_for(21));

  const int exact = state.acquire(), replay = state.acquire();
  ASSERT_TRUE(cache.attach(tokens, 21, true, exact));
  ASSERT_TRUE(cache.attach(tokens, 17, false, replay));
  EXPECT_EQ(state.pool().used_pages(), held);
  rig.apply();
  EXPECT_EQ(rig.recent(exact, 21), rig.expected_recent(tokens, 21));

  const Tokens longer = joined(tokens, sequence(9, 1));
  const Tokens other = joined({tokens.begin(), tokens.begin() + 17}, sequence(9, 2));
  ASSERT_TRUE(state.reserve(exact, 30, 21));
  ASSERT_TRUE(state.reserve(replay, 26, 17));
  rig.apply();
  rig.compute(exact, longer, 21, 30);
  rig.compute(replay, other, 17, 26);
  for (int source = 0; source < 2; ++source) {
    EXPECT_EQ(rig.rows(exact, source, 30), rig.expected_rows(longer, source, 30));
    EXPECT_EQ(rig.rows(replay, source, 26), rig.expected_rows(other, source, 26));
  }
  const int again = state.acquire();
  ASSERT_TRUE(cache.attach(tokens, 21, true, again));
  rig.apply();
  for (int source = 0; source < 2; ++source)
    EXPECT_EQ(rig.rows(again, source, 21), rig.expected_rows(tokens, source, 21));
  rig.expect_balance(&cache, std::vector{exact, replay, again});
}

TEST(PrefixCache, AttachRefusesWhatIsNotThere) {
  CacheRig rig;
  PrefixCache cache(rig.state(), kReplay);
  rig.store(cache, sequence(20));
  const int slot = rig.state().acquire();
  EXPECT_FALSE(cache.attach(sequence(20), 19, true, slot));
  EXPECT_FALSE(cache.attach(joined(sequence(20), {5}), 21, false, slot));
  EXPECT_TRUE(rig.state().pages(slot, 1).empty());
}

TEST(PrefixCache, NextTurnSharesPages) {
  CacheRig rig;
  PrefixCache cache(rig.state(), kExact);
  StateStore& state = rig.state();
  Tokens tokens = sequence(16);  // whole pages: nothing is copied
  int slot = rig.fill(tokens);
  rig.save(cache, tokens, 16, slot);
  for (int turn = 1; turn < 4; ++turn) {
    const auto length = static_cast<int64_t>(tokens.size());
    tokens = joined(tokens, sequence(16, static_cast<uint64_t>(turn)));
    ASSERT_TRUE(state.reserve(slot, length + 16, length));
    rig.apply();
    rig.compute(slot, tokens, length, length + 16);
    rig.save(cache, tokens, length + 16, slot);
    EXPECT_EQ(cache.pages(), state.pages_for(length + 16));
  }
  EXPECT_EQ(cache.entries(), 4);
  state.release(slot);
  rig.expect_balance(&cache, {});
}

TEST(PrefixCache, RecentPartsOverBudgetLeaveLeastRecentlyUsedFirst) {
  CacheRig rig;
  const uint64_t one = rig.state().recent_bytes();
  for (const PrefixCacheMode mode : {PrefixCacheMode::kExact, PrefixCacheMode::kReplay}) {
    PrefixCache cache(rig.state(), {.mode = mode, .recent_budget_bytes = 2 * one});
    rig.store(cache, sequence(20, 1));
    rig.store(cache, sequence(20, 2));
    lookup(cache, sequence(20, 1));
    rig.store(cache, sequence(20, 3));
    EXPECT_EQ(cache.recent_bytes(), 2 * one);
    EXPECT_EQ(lookup(cache, sequence(20, 1)).exact_length, 20);
    EXPECT_EQ(lookup(cache, sequence(20, 2)).exact_length, 0);
    EXPECT_EQ(lookup(cache, sequence(20, 3)).exact_length, 20);
    // Rows alone serve a replay only.
    EXPECT_EQ(cache.entries(), mode == PrefixCacheMode::kExact ? 2 : 3);
  }
  EXPECT_EQ(rig.state().pool().used_pages(), 0);
}

TEST(PrefixCache, RowsThatALongerEntryServesAreNotKeptTwice) {
  CacheRig rig;
  PrefixCache cache(rig.state(), {.mode = PrefixCacheMode::kReplay, .recent_budget_bytes = 0});
  rig.store(cache, sequence(20));
  EXPECT_EQ(cache.entries(), 1);
  rig.store(cache, joined(sequence(20), {1, 2}));
  EXPECT_EQ(cache.entries(), 1);
  EXPECT_EQ(cache.pages(), rig.state().pages_for(22));
  rig.store(cache, sequence(12));
  EXPECT_EQ(cache.entries(), 1);
  EXPECT_EQ(lookup(cache, sequence(20)).replay_length, 20);
}

TEST(PrefixCache, EvictFreesLeastRecentlyUsedPagesThatNobodyElseHolds) {
  CacheRig rig;
  PrefixCache cache(rig.state(), kExact);
  StateStore& state = rig.state();
  const int64_t each = state.pages_for(16);
  for (const uint64_t seed : {1, 2, 3}) rig.store(cache, sequence(16, seed));
  const int slot = state.acquire();
  ASSERT_TRUE(cache.attach(sequence(16, 1), 16, true, slot));
  lookup(cache, sequence(16, 2));

  EXPECT_EQ(cache.evict(0), 0);
  EXPECT_EQ(cache.evict(1), each);  // an entry goes as a whole; the first is in use
  EXPECT_EQ(lookup(cache, sequence(16, 3)).exact_length, 0);
  EXPECT_EQ(cache.evict(1000), each);
  EXPECT_EQ(lookup(cache, sequence(16, 2)).exact_length, 0);
  EXPECT_EQ(lookup(cache, sequence(16, 1)).exact_length, 16);
  EXPECT_EQ(cache.evict(1000), 0);
  state.release(slot);
  EXPECT_EQ(cache.evict(1000), each);
  EXPECT_EQ(cache.entries(), 0);
  EXPECT_EQ(cache.recent_bytes(), 0u);
  EXPECT_EQ(state.pool().used_pages(), 0);
}

TEST(PrefixCache, ClearAndDestructionGivePagesBack) {
  CacheRig rig;
  {
    PrefixCache cache(rig.state(), kReplay);
    rig.store(cache, sequence(16));
    cache.clear();
    EXPECT_EQ(cache.entries() + cache.pages(), 0);
    EXPECT_EQ(rig.state().pool().used_pages(), 0);
    rig.store(cache, sequence(16));
    EXPECT_GT(rig.state().pool().used_pages(), 0);
  }
  EXPECT_EQ(rig.state().pool().used_pages(), 0);
}

}  // namespace
}  // namespace peregrine::test
