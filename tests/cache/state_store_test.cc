// Pages, sharing and bytes of sequence state.
#include "cache/state_store.h"

#include <gtest/gtest.h>

#include <vector>

#include "cache/cache_rig.h"

namespace peregrine::test {
namespace {

std::vector<int32_t> list(std::span<const int32_t> pages) { return {pages.begin(), pages.end()}; }

void attach_all(StateStore& state, int from, int to, int64_t tokens) {
  for (int source = 0; source < state.sources(); ++source) {
    const int64_t rows = state.rows_of(source, tokens);
    const auto pages = list(state.pages(from, source).first(static_cast<size_t>((rows + 3) / 4)));
    state.attach(to, source, pages);
  }
}

TEST(StateStore, SlotsAreHandedOutAndTakenBack) {
  CacheRig rig(0, 2);
  StateStore& state = rig.state();
  const int a = state.acquire();
  const int b = state.acquire();
  EXPECT_NE(a, b);
  EXPECT_EQ(state.acquire(), -1);
  EXPECT_EQ(state.free_slots(), 0);
  state.release(a);
  EXPECT_EQ(state.acquire(), a);
}

TEST(StateStore, ReserveGivesPagesForCompletedRowsOnly) {
  CacheRig rig;
  StateStore& state = rig.state();
  const int slot = state.acquire();
  ASSERT_TRUE(state.reserve(slot, 9, 0));  // 4 rows of ratio 2, 9 of ratio 1
  EXPECT_EQ(state.pages(slot, 0).size(), 1u);
  EXPECT_EQ(state.pages(slot, 1).size(), 3u);
  EXPECT_EQ(state.pages_for(9), 4);
  ASSERT_TRUE(state.reserve(slot, 10, 9));  // the fifth row of ratio 2
  EXPECT_EQ(state.pages(slot, 0).size(), 2u);
  EXPECT_EQ(state.kv_bytes_in_use(), 5 * static_cast<int64_t>(state.page_bytes()));
  rig.expect_balance(nullptr, std::vector{slot});
}

TEST(StateStore, ReserveIsAllOrNothingAndSaysWhatIsMissing) {
  CacheRig rig(6);
  StateStore& state = rig.state();
  const int slot = state.acquire();
  ASSERT_TRUE(state.reserve(slot, 8, 0));  // 1 + 2 pages
  EXPECT_EQ(state.missing_pages(slot, 16, 8), 0);
  EXPECT_EQ(state.missing_pages(slot, 24, 8), 3);  // 3 + 6 of 6
  EXPECT_FALSE(state.reserve(slot, 24, 8));
  EXPECT_EQ(state.pool().used_pages(), 3);
  EXPECT_TRUE(state.reserve(slot, 16, 8));
  EXPECT_EQ(state.pool().free_pages(), 0);
  rig.expect_balance(nullptr, std::vector{slot});
}

TEST(StateStore, TruncateDropsPagesWithoutRows) {
  CacheRig rig;
  StateStore& state = rig.state();
  const int slot = state.acquire();
  ASSERT_TRUE(state.reserve(slot, 32, 0));
  const auto first = list(state.pages(slot, 1).first(3));
  state.truncate(slot, 9);
  EXPECT_EQ(list(state.pages(slot, 1)), first);
  EXPECT_EQ(state.pages(slot, 0).size(), 1u);
  state.truncate(slot, 0);
  EXPECT_EQ(state.pool().used_pages(), 0);
}

TEST(StateStore, SharedPagesAreCopiedFromTheFirstWritableRow) {
  CacheRig rig;
  StateStore& state = rig.state();
  const Tokens tokens = sequence(22);
  const int a = rig.fill(tokens);
  const int b = state.acquire();
  attach_all(state, a, b, 22);
  rig.apply();
  const auto shared0 = list(state.pages(b, 0));
  const auto shared1 = list(state.pages(b, 1));
  ASSERT_TRUE(state.reserve(b, 22, 18));  // rows from 9 (page 2) and from 18 (page 4)
  rig.apply();
  for (size_t i = 0; i < shared0.size(); ++i)
    EXPECT_EQ(state.pages(b, 0)[i] == shared0[i], i < 2) << i;
  for (size_t i = 0; i < shared1.size(); ++i)
    EXPECT_EQ(state.pages(b, 1)[i] == shared1[i], i < 4) << i;

  // Different continuations; the common part stays.
  const Tokens other = joined({tokens.begin(), tokens.begin() + 18}, sequence(4, 7));
  rig.compute(b, other, 18, 22);
  for (int source = 0; source < 2; ++source) {
    EXPECT_EQ(rig.rows(a, source, 22), rig.expected_rows(tokens, source, 22));
    EXPECT_EQ(rig.rows(b, source, 22), rig.expected_rows(other, source, 22));
  }
  rig.expect_balance(nullptr, std::vector{a, b});
  state.release(a);
  EXPECT_EQ(rig.rows(b, 1, 22), rig.expected_rows(other, 1, 22));
  rig.expect_balance(nullptr, std::vector{b});
}

TEST(StateStore, CopyOnWriteCountsAsMissing) {
  CacheRig rig(9);
  StateStore& state = rig.state();
  const int a = rig.fill(sequence(22));  // 3 + 6 pages
  const int b = state.acquire();
  attach_all(state, a, b, 22);
  EXPECT_EQ(state.missing_pages(b, 22, 22), 2);  // the two partial pages
  EXPECT_FALSE(state.reserve(b, 22, 22));
  rig.expect_balance(nullptr, std::vector{a, b});
  state.release(a);
  EXPECT_TRUE(state.reserve(b, 22, 22));  // nobody else has them now
}

TEST(StateStore, RecentPartComesBackInAnotherSlot) {
  CacheRig rig;
  StateStore& state = rig.state();
  for (const int64_t length : {1, 2, 15, 16, 17, 40, 41}) {
    const Tokens tokens = sequence(static_cast<size_t>(length), 3);
    const int a = rig.fill(tokens);
    const auto saved = rig.recent(a, length);
    const int b = state.acquire();
    state.load_recent(b, length, saved.data());
    EXPECT_EQ(rig.recent(b, length), saved) << length;
    // The open half of a pair exists at odd lengths only; the oldest ring row from the window on.
    const size_t tails = saved.size() - 2 * 2 * 64 * sizeof(float);
    EXPECT_EQ(saved[tails] != std::byte{0} || saved[tails + 1] != std::byte{0}, length % 2 == 1);
    state.release(a);
    state.release(b);
  }
}

TEST(StateStore, PagesComeBackAsUpdatesInOrder) {
  CacheRig rig;
  StateStore& state = rig.state();
  const Tokens tokens = sequence(11);
  const int a = rig.fill(tokens);
  std::vector<std::byte> page(state.page_bytes());
  const int b = state.acquire();
  ASSERT_TRUE(state.reserve(b, 11, 11));
  for (int source = 0; source < 2; ++source) {
    const int64_t rows = state.rows_of(source, 11);
    for (int64_t i = 0; i * 4 < rows; ++i) {
      state.save_page(state.pages(a, source)[static_cast<size_t>(i)],
                      std::min<int64_t>(4, rows - i * 4), page.data());
      state.fill_page(b, source, i, std::make_shared<const std::vector<std::byte>>(page));
    }
  }
  // Copies a filled page before the device has seen either.
  const int c = state.acquire();
  attach_all(state, b, c, 11);
  ASSERT_TRUE(state.reserve(c, 12, 11));
  EXPECT_NE(rig.rows(b, 1, 11), rig.expected_rows(tokens, 1, 11));
  rig.apply();
  for (const int slot : {b, c})
    for (int source = 0; source < 2; ++source)
      EXPECT_EQ(rig.rows(slot, source, 11), rig.expected_rows(tokens, source, 11));
}

TEST(StateStore, SavedPageHoldsNothingButItsRows) {
  CacheRig rig;
  StateStore& state = rig.state();
  const int slot = rig.fill(sequence(8));
  std::vector<std::byte> one(state.page_bytes()), two(state.page_bytes(), std::byte{1});
  state.save_page(state.pages(slot, 1)[0], 3, one.data());
  rig.compute(slot, sequence(8, 5), 3, 8);
  state.save_page(state.pages(slot, 1)[0], 3, two.data());
  EXPECT_EQ(one, two);
  state.save_page(state.pages(slot, 1)[0], 4, two.data());
  EXPECT_NE(one, two);
}

}  // namespace
}  // namespace peregrine::test
