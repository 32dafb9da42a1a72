// Sessions: whatever way a state was reached, it is the state of its tokens, bit for bit.
#include <gtest/gtest.h>

#include <limits>

#include "engine/tiny.h"

namespace peregrine::test {
namespace {

constexpr int kContext = 512;

class SessionTest : public ::testing::Test {
 protected:
  std::shared_ptr<const Model> model() const { return tiny_model(); }
  Session make(SessionOptions options = {}) const {
    if (options.context_tokens == 0) options.context_tokens = kContext;
    return Session(model(), options);
  }
  // Logits of a session that knows nothing but these tokens.
  Rows fresh(const Ids& tokens) const {
    Session session = make();
    session.sync(tokens);
    return copied(session.logits());
  }
};

std::span<const int32_t> first(const Ids& ids, size_t count) { return std::span(ids).first(count); }

TEST_F(SessionTest, SyncKeepsTheCommonPrefix) {
  Session session = make({.draft_rows = 5});
  const Ids a = random_tokens(40, 1);
  SyncResult result = session.sync(a);
  EXPECT_EQ(result.kept, 0);
  EXPECT_EQ(result.computed, 40);
  EXPECT_TRUE(result.complete);
  EXPECT_EQ(session.tokens(), a);

  Ids b = random_tokens(50, 2);
  std::copy_n(a.begin(), 31, b.begin());
  result = session.sync(b);
  EXPECT_EQ(result.kept, 31);
  EXPECT_EQ(result.computed, 19);
  EXPECT_EQ(session.tokens(), b);
  EXPECT_TRUE(same_bits(session.logits(), fresh(b)));

  Session other = make({.draft_rows = 5});
  other.sync(b);
  EXPECT_TRUE(same_bits(draft_rows(session, 9, 5), draft_rows(other, 9, 5)));
}

TEST_F(SessionTest, SyncExtends) {
  Session session = make();
  const Ids all = random_tokens(60, 3);
  session.sync(first(all, 20));
  const SyncResult result = session.sync(all);
  EXPECT_EQ(result.kept, 20);
  EXPECT_EQ(result.computed, 40);
  EXPECT_TRUE(same_bits(session.logits(), fresh(all)));
}

TEST_F(SessionTest, SyncToTheSameTokensRunsNothing) {
  Session session = make();
  const Ids all = random_tokens(30, 4);
  session.sync(all);
  const Rows before = copied(session.logits());
  SyncResult result = session.sync(all);
  EXPECT_EQ(result.kept, 30);
  EXPECT_EQ(result.computed, 0);
  EXPECT_TRUE(same_bits(session.logits(), before));

  // The session's own tokens are a prefix like any other.
  result = session.sync(std::span(session.tokens()).first(29));
  EXPECT_EQ(result.kept, 28);
  EXPECT_EQ(session.tokens(), Ids(all.begin(), all.end() - 1));

  // After a truncation the last position runs again, for its logits.
  session.sync(all);
  session.truncate(25);
  EXPECT_TRUE(session.logits().empty());
  result = session.sync(first(all, 25));
  EXPECT_EQ(result.kept, 24);
  EXPECT_EQ(result.computed, 1);
  EXPECT_TRUE(same_bits(session.logits(), fresh(Ids(all.begin(), all.begin() + 25))));
}

TEST_F(SessionTest, SyncShortensInsideTheRollbackWindowAndBeyond) {
  Session session = make({.rollback_tokens = 32});
  const Ids all = random_tokens(150, 5);
  session.sync(all);
  EXPECT_EQ(session.rollback_floor(), 118);
  SyncResult result = session.sync(first(all, 120));
  EXPECT_EQ(result.kept, 119);
  EXPECT_EQ(result.computed, 1);
  EXPECT_TRUE(same_bits(session.logits(), fresh(Ids(all.begin(), all.begin() + 120))));

  // The floor depends on how far the rings have run, not on the present length.
  result = session.sync(first(all, 117));
  EXPECT_EQ(result.kept, 0);
  EXPECT_EQ(result.computed, 117);
  EXPECT_TRUE(same_bits(session.logits(), fresh(Ids(all.begin(), all.begin() + 117))));
  EXPECT_EQ(session.rollback_floor(), 117 - 32);
}

TEST_F(SessionTest, RefusalsLeaveTheStateAsItWas) {
  Session session = make({.context_tokens = 40, .chunk_tokens = 8});
  const Ids all = random_tokens(30, 6);
  session.sync(all);
  const Rows before = copied(session.logits());
  const auto refused = [&](const std::string& words, auto call) {
    expect_refusal(ErrorKind::kInvalidArgument, words, call);
    EXPECT_EQ(session.tokens(), all);
    EXPECT_TRUE(same_bits(session.logits(), before));
  };
  const int vocab = model()->vocab_size();
  Ids bad = all;
  refused("empty prompt", [&] { session.sync({}); });
  bad[7] = -1;
  refused("token id -1 at position 7", [&] { session.sync(bad); });
  bad[7] = vocab;
  refused("token id " + std::to_string(vocab), [&] { session.sync(bad); });
  refused("41 tokens do not fit the context of 40", [&] { session.sync(random_tokens(41, 7)); });
  refused("append of no tokens", [&] { session.append({}); });
  refused("one step takes at most 8", [&] { session.append(random_tokens(9, 7)); });
  refused("token id -5 at position 30", [&] { session.step(-5); });
  refused("token id " + std::to_string(vocab), [&] { session.step(vocab); });
  refused("truncate to 31 tokens", [&] { session.truncate(31); });
  refused("truncate to -1 tokens", [&] { session.truncate(-1); });

  // The next step shows that rings and pages are untouched too.
  Session other = make();
  other.sync(all);
  EXPECT_TRUE(same_bits(session.append(random_tokens(8, 8)), other.append(random_tokens(8, 8))));
  session.append(first(random_tokens(2, 9), 2));
  expect_refusal(ErrorKind::kInvalidArgument, "41 tokens do not fit", [&] { session.step(5); });
  EXPECT_EQ(session.length(), 40);
}

TEST_F(SessionTest, OptionsOutOfRange) {
  const auto refused = [&](const SessionOptions& options, const std::string& words) {
    expect_refusal(ErrorKind::kInvalidArgument, words, [&] { Session session(model(), options); });
  };
  refused({.context_tokens = -1}, "context of -1 tokens");
  refused({.context_tokens = model()->max_context() + 1}, "context of");
  refused({.chunk_tokens = -2}, "chunk of -2 tokens");
  refused({.draft_rows = -1}, "draft block of -1");
  refused({.draft_rows = kMaxDrafts + 1}, "draft block of 17");
  refused({.rollback_tokens = 31}, "rollback of 31 tokens");
  // More than the context can use is no mistake, and costs nothing.
  Session session(model(), {.context_tokens = 40,
                            .chunk_tokens = std::numeric_limits<int>::max(),
                            .rollback_tokens = std::numeric_limits<int>::max()});
  session.sync(random_tokens(40, 1));
  session.truncate(0);
  EXPECT_EQ(session.length(), 0);
  EXPECT_LT(session.kv_bytes(), uint64_t{16} << 20);
}

TEST_F(SessionTest, AStoppedSyncResumes) {
  const Ids all = random_tokens(50, 10);
  Session session = make({.chunk_tokens = 16});
  std::vector<std::pair<int64_t, int64_t>> asked;
  SyncResult result = session.sync(all, [&](int64_t done, int64_t total) {
    asked.emplace_back(done, total);
    return done < 32;
  });
  EXPECT_FALSE(result.complete);
  EXPECT_EQ(result.computed, 32);
  EXPECT_EQ(session.tokens(), Ids(all.begin(), all.begin() + 32));
  EXPECT_TRUE(session.logits().empty());
  EXPECT_EQ(asked, (std::vector<std::pair<int64_t, int64_t>>{{16, 50}, {32, 50}}));

  // Stopping behind the last chunk comes too late to matter.
  asked.clear();
  result = session.sync(all, [&](int64_t done, int64_t total) {
    asked.emplace_back(done, total);
    return done < total;
  });
  EXPECT_TRUE(result.complete);
  EXPECT_EQ(result.kept, 32);
  EXPECT_EQ(asked, (std::vector<std::pair<int64_t, int64_t>>{{16, 18}, {18, 18}}));
  EXPECT_TRUE(same_bits(session.logits(), fresh(all)));
}

TEST_F(SessionTest, LogitsOfEveryPositionForAnyChunk) {
  const int length = reduced(210, 3);
  const Ids all = random_tokens(static_cast<size_t>(length), 11);
  Session whole = make({.chunk_tokens = length, .draft_rows = 5});
  const Rows want = copied(whole.append(all));
  const Rows want_drafts = draft_rows(whole, 17, 5);
  const auto vocab = static_cast<size_t>(model()->vocab_size());
  for (const int chunk : {1, 2, 3, 7, 16}) {
    Session session = make({.chunk_tokens = chunk, .draft_rows = 5});
    for (int64_t begin = 0; begin < length; begin += chunk) {
      const auto count = static_cast<size_t>(std::min<int64_t>(chunk, length - begin));
      const auto rows = session.append(std::span(all).subspan(static_cast<size_t>(begin), count));
      ASSERT_TRUE(same_bits(
          rows, std::span(want).subspan(static_cast<size_t>(begin) * vocab, count * vocab)))
          << "chunk " << chunk << " at " << begin;
    }
    EXPECT_TRUE(same_bits(draft_rows(session, 17, 5), want_drafts)) << "chunk " << chunk;
    Session synced = make({.chunk_tokens = chunk});
    synced.sync(all);
    EXPECT_TRUE(same_bits(synced.logits(), std::span(want).last(vocab))) << "chunk " << chunk;
  }
}

// Depth 0 .. rollback from an even and an odd length, below and beyond the first turn of the rings.
TEST_F(SessionTest, TruncateAndRunAgain) {
  constexpr int kRollback = 32;
  const auto vocab = static_cast<size_t>(model()->vocab_size());
  for (const size_t length : {33, 40, 150, 151}) {
    const Ids all = random_tokens(length + 2, static_cast<uint32_t>(length));
    const Ids wrong = random_tokens(kRollback, 99);
    Session session = make({.draft_rows = 5, .rollback_tokens = kRollback});
    const Rows want = copied(session.append(all));
    const Rows want_drafts = draft_rows(session, 17, 5);
    const auto tail = [&](size_t depth) { return std::span(want).last((depth + 2) * vocab); };
    const int stride = kSanitized ? 5 : 1;
    for (size_t depth = 0; depth <= kRollback - 2; depth += static_cast<size_t>(stride)) {
      session.truncate(static_cast<int64_t>(length - depth));
      const auto rows = session.append(std::span(all).last(depth + 2));
      ASSERT_TRUE(same_bits(rows, tail(depth))) << "length " << length << ", depth " << depth;
      ASSERT_TRUE(same_bits(draft_rows(session, 17, 5), want_drafts))
          << "length " << length << ", depth " << depth;
    }
    // Rows of rejected tokens leave no trace.
    session.truncate(static_cast<int64_t>(length));
    for (size_t rejected = 1; rejected <= kRollback; rejected += static_cast<size_t>(stride)) {
      session.append(first(wrong, rejected));
      session.truncate(static_cast<int64_t>(length));
      ASSERT_TRUE(same_bits(session.append(std::span(all).last(2)), tail(0)))
          << "length " << length << ", rejected " << rejected;
      ASSERT_TRUE(same_bits(draft_rows(session, 17, 5), want_drafts))
          << "length " << length << ", rejected " << rejected;
      session.truncate(static_cast<int64_t>(length));
    }
  }
}

TEST_F(SessionTest, TruncateReachesTheFloorAndNotBelow) {
  Session session = make({.rollback_tokens = 32});
  const Ids all = random_tokens(100, 12);
  session.sync(all);
  ASSERT_EQ(session.rollback_floor(), 68);
  expect_refusal(ErrorKind::kInvalidArgument, "can go back to 68", [&] { session.truncate(67); });
  session.truncate(68);
  EXPECT_EQ(session.length(), 68);
  // Going back does not move the floor down; growing again past the old length moves it up.
  EXPECT_EQ(session.rollback_floor(), 68);
  session.sync(all);
  session.step(5);
  EXPECT_EQ(session.rollback_floor(), 69);
}

// -- replay prefill

constexpr size_t kWindow = 64;  // of models/tiny

TEST_F(SessionTest, ReplayOfAShortPromptIsExact) {
  for (const size_t length : {size_t{1}, kWindow - 1, kWindow}) {
    const Ids all = random_tokens(length, 13);
    Session exact = make({.draft_rows = 5});
    Session replay = make({.prefill = PrefillMode::kReplay, .draft_rows = 5});
    exact.sync(all);
    replay.sync(all);
    EXPECT_TRUE(same_bits(replay.logits(), exact.logits())) << length;
    EXPECT_TRUE(same_bits(draft_rows(replay, 17, 5), draft_rows(exact, 17, 5))) << length;
    EXPECT_TRUE(same_bits(greedy_rows(replay, 5), greedy_rows(exact, 5))) << length;
  }
}

TEST_F(SessionTest, ReplayIsTheSameForAnyChunk) {
  for (const size_t length : {size_t{65}, size_t{101}, size_t{200}}) {
    const Ids all = random_tokens(length, 14);
    Session whole = make({.chunk_tokens = 256, .prefill = PrefillMode::kReplay, .draft_rows = 5});
    whole.sync(all);
    const Rows want = copied(whole.logits());
    EXPECT_FALSE(same_bits(want, fresh(all))) << "a replay of " << length << " should differ";
    const Rows want_drafts = draft_rows(whole, 17, 5), want_next = greedy_rows(whole, 20);
    for (const int chunk : {1, 2, 3, 7, 16, 63, 64, 65}) {
      Session session =
          make({.chunk_tokens = chunk, .prefill = PrefillMode::kReplay, .draft_rows = 5});
      session.sync(all);
      ASSERT_TRUE(same_bits(session.logits(), want)) << length << ", chunk " << chunk;
      ASSERT_TRUE(same_bits(draft_rows(session, 17, 5), want_drafts)) << length << ", " << chunk;
      ASSERT_TRUE(same_bits(greedy_rows(session, 20), want_next)) << length << ", " << chunk;
    }
  }
}

TEST_F(SessionTest, ReplayContinues) {
  // A short continuation runs exactly behind the rings that are there; a long one replays again.
  const Ids all = random_tokens(260, 15);
  Session session = make({.prefill = PrefillMode::kReplay});
  session.sync(first(all, 100));
  EXPECT_EQ(session.rollback_floor(), 100);
  SyncResult result = session.sync(first(all, 150));
  EXPECT_EQ(result.kept, 100);
  Session stepped = make({.prefill = PrefillMode::kReplay});
  stepped.sync(first(all, 100));
  for (size_t i = 100; i < 150; ++i) stepped.step(all[i]);
  EXPECT_TRUE(same_bits(session.logits(), stepped.logits()));

  result = session.sync(all);
  EXPECT_EQ(result.kept, 150);
  // The decoder sees its last window alone, so where the encoder had paused does not matter.
  Session once = make({.prefill = PrefillMode::kReplay});
  once.sync(all);
  EXPECT_TRUE(same_bits(session.logits(), once.logits()));
  EXPECT_TRUE(same_bits(greedy_rows(session, 10), greedy_rows(once, 10)));
}

TEST_F(SessionTest, AStoppedReplayLeavesAnUsableSession) {
  const Ids all = random_tokens(120, 16);
  Session session = make({.chunk_tokens = 16, .prefill = PrefillMode::kReplay});
  const SyncResult result = session.sync(all, [](int64_t done, int64_t) { return done < 48; });
  EXPECT_FALSE(result.complete);
  EXPECT_EQ(session.length(), 0);
  EXPECT_TRUE(session.logits().empty());
  session.sync(all);
  Session other = make({.prefill = PrefillMode::kReplay});
  other.sync(all);
  EXPECT_TRUE(same_bits(session.logits(), other.logits()));
}

}  // namespace
}  // namespace peregrine::test
