// Snapshots: a restored session continues bit for bit; bytes that are no snapshot change nothing.
#include <gtest/gtest.h>

#include <limits>

#include "engine/tiny.h"

namespace peregrine::test {
namespace {

constexpr int kContext = 512;
constexpr size_t kHeaderBytes = 48, kChecksumAt = 16, kFingerprintAt = 24;

Session make(SessionOptions options = {}) {
  if (options.context_tokens == 0) options.context_tokens = kContext;
  return Session(tiny_model(), options);
}

using Bytes = std::vector<std::byte>;

// Everything that continues from a state: drafts, 20 steps, then what a rollback reaches.
void expect_same_continuation(Session& a, Session& b) {
  EXPECT_EQ(a.tokens(), b.tokens());
  EXPECT_TRUE(same_bits(draft_rows(a, 17, 5), draft_rows(b, 17, 5)));
  const Ids next = random_tokens(20, 77);
  for (const int32_t token : next) ASSERT_TRUE(same_bits(a.step(token), b.step(token)));
  EXPECT_TRUE(same_bits(draft_rows(a, 17, 5), draft_rows(b, 17, 5)));
  const int64_t back = a.length() - 7;
  a.truncate(back);
  b.truncate(back);
  EXPECT_TRUE(same_bits(a.append(std::span(next).first(3)), b.append(std::span(next).first(3))));
}

TEST(Snapshot, ContinuesBitForBit) {
  // Shorter than the window of 64, around it, and beyond the first turn of the rings; even and odd.
  for (const size_t length : {1, 2, 7, 63, 64, 65, 128, 201, 250}) {
    Session session = make({.draft_rows = 5});
    session.sync(random_tokens(length, static_cast<uint32_t>(length)));
    const Bytes bytes = session.snapshot();

    Session restored = make({.draft_rows = 5});
    restored.sync(random_tokens(150, 3));  // what was there before must not shine through
    restored.restore(bytes);
    EXPECT_TRUE(restored.logits().empty());
    EXPECT_EQ(restored.rollback_floor(), static_cast<int64_t>(length));
    EXPECT_EQ(restored.snapshot(), bytes) << "length " << length;
    SCOPED_TRACE(length);
    expect_same_continuation(session, restored);
  }
}

TEST(Snapshot, DoesNotDependOnChunksOrRollback) {
  const Ids all = random_tokens(151, 4);
  Session whole = make({.draft_rows = 5}), pieces = make({.chunk_tokens = 7, .draft_rows = 5});
  whole.sync(all);
  pieces.sync(all);
  EXPECT_EQ(whole.snapshot(), pieces.snapshot());

  // A detour through rejected tokens leaves nothing in the bytes.
  Session detour = make({.draft_rows = 5, .rollback_tokens = 40});
  detour.sync(all);
  detour.append(random_tokens(20, 5));
  detour.truncate(151);
  EXPECT_EQ(detour.snapshot(), whole.snapshot());
}

TEST(Snapshot, OfAnEmptySession) {
  Session session = make(), other = make();
  other.sync(random_tokens(9, 1));
  other.restore(session.snapshot());
  EXPECT_EQ(other.length(), 0);
  session.sync(random_tokens(30, 2));
  other.sync(random_tokens(30, 2));
  EXPECT_TRUE(same_bits(session.logits(), other.logits()));
}

TEST(Snapshot, MovesBetweenSessionsOfDifferentSizes) {
  Session session = make({.draft_rows = 5});
  session.sync(random_tokens(101, 6));
  Session other =
      make({.context_tokens = 200, .chunk_tokens = 5, .draft_rows = 5, .rollback_tokens = 40});
  other.restore(session.snapshot());
  expect_same_continuation(session, other);
}

TEST(Snapshot, SyncContinuesBehindIt) {
  const Ids all = random_tokens(140, 8);
  Session session = make();
  session.sync(std::span(all).first(101));
  Session other = make();
  other.restore(session.snapshot());
  const SyncResult result = other.sync(all);
  EXPECT_EQ(result.kept, 101);
  session.sync(all);
  EXPECT_TRUE(same_bits(session.logits(), other.logits()));
  // The same tokens alone have no logits to give: they run from the start.
  other.restore(session.snapshot());
  EXPECT_EQ(other.sync(all).kept, 0);
  EXPECT_TRUE(same_bits(session.logits(), other.logits()));
}

TEST(Snapshot, OfAReplayPrefill) {
  for (const size_t length : {50, 100, 131}) {
    const SessionOptions options{.prefill = PrefillMode::kReplay, .draft_rows = 5};
    Session session = make(options), other = make(options), exact = make({.draft_rows = 5});
    session.sync(random_tokens(length, 9));
    const Bytes bytes = session.snapshot();
    other.restore(bytes);
    // The mode is about prompts; a state continues alike in a session of the other mode.
    exact.restore(bytes);
    EXPECT_EQ(exact.snapshot(), bytes);
    SCOPED_TRACE(length);
    expect_same_continuation(session, other);
    Session again = make(options);
    again.restore(bytes);
    expect_same_continuation(again, exact);
  }
}

class DamagedSnapshot : public ::testing::Test {
 protected:
  DamagedSnapshot() : session_(make({.context_tokens = 100})) {
    session_.sync(tokens_);
    before_ = copied(session_.logits());
    Session source = make();
    source.sync(random_tokens(71, 2));
    bytes_ = source.snapshot();
  }
  void expect_refused(const Bytes& bytes, const std::string& words) {
    expect_refusal(ErrorKind::kInvalidArgument, words, [&] { session_.restore(bytes); });
    ASSERT_EQ(session_.tokens(), tokens_);
    ASSERT_TRUE(same_bits(session_.logits(), before_));
  }
  template <typename T>
  Bytes with(size_t offset, T value) const {
    Bytes bytes = bytes_;
    std::memcpy(bytes.data() + offset, &value, sizeof(value));
    return bytes;
  }
  void TearDown() override {
    // Not only the books: rings and pages are as before.
    Session other = make();
    other.sync(tokens_);
    EXPECT_TRUE(same_bits(greedy_rows(session_, 5), greedy_rows(other, 5)));
    session_.restore(bytes_);
    EXPECT_EQ(session_.length(), 71);
  }

  const Ids tokens_ = random_tokens(33, 1);
  Session session_;
  Rows before_;
  Bytes bytes_;
};

TEST_F(DamagedSnapshot, Truncated) {
  for (const size_t size : {size_t{0}, size_t{1}, kHeaderBytes - 1})
    expect_refused({bytes_.begin(), bytes_.begin() + static_cast<ptrdiff_t>(size)},
                   std::to_string(size) + " bytes, expected at least 48");
  for (const size_t size : {kHeaderBytes, kHeaderBytes + 5, bytes_.size() - 1})
    expect_refused(
        {bytes_.begin(), bytes_.begin() + static_cast<ptrdiff_t>(size)},
        std::to_string(size) + " bytes for 71 tokens, expected " + std::to_string(bytes_.size()));
  Bytes longer = bytes_;
  longer.push_back({});
  expect_refused(longer, "bytes for 71 tokens, expected");
}

TEST_F(DamagedSnapshot, EveryFlippedByte) {
  for (size_t i = 0; i < kHeaderBytes; ++i) {
    for (const int bit : {0, 7}) {
      Bytes flipped = bytes_;
      flipped[i] ^= std::byte{1} << bit;
      expect_refused(flipped, "snapshot: ");
    }
  }
  for (size_t i = kHeaderBytes; i < bytes_.size(); i += 1 + bytes_.size() / 40) {
    Bytes flipped = bytes_;
    flipped[i] ^= std::byte{0x10};
    expect_refused(flipped, "damaged bytes");
  }
}

TEST_F(DamagedSnapshot, ForeignOrOfAnotherVersion) {
  expect_refused(Bytes(1000, std::byte{'x'}), "do not start with \"PGRNSNAP\"");
  expect_refused(with(8, uint64_t{2}), "format version 2, expected 1");
  uint64_t fingerprint;
  std::memcpy(&fingerprint, bytes_.data() + kFingerprintAt, sizeof(fingerprint));
  expect_refused(with(kFingerprintAt, fingerprint ^ 1), "made by other weights");
  expect_refused(with(kChecksumAt, uint64_t{0}), "damaged bytes");
  expect_refused(with(32, int64_t{-1}), "-1 tokens");
  expect_refused(with(32, std::numeric_limits<int64_t>::max()), "tokens, this session's context");
  Session longer = make();
  longer.sync(random_tokens(101, 3));
  expect_refused(longer.snapshot(), "101 tokens, this session's context holds 100");
}

// The plain backend keeps the same promises; few positions, since it is slow.
TEST(ReferenceBackend, StateIsThatOfItsTokens) {
  const Ids all = random_tokens(12, 1);
  const SessionOptions options{.context_tokens = 64, .chunk_tokens = 16, .draft_rows = 3};
  Session whole(tiny_model("reference"), options);
  const Rows want = copied(whole.append(all));
  const Rows drafts = draft_rows(whole, 17, 3);
  const auto vocab = static_cast<size_t>(tiny_model()->vocab_size());

  Session session(tiny_model("reference"), options);
  session.append(std::span(all).first(7));
  session.append(random_tokens(4, 2));
  session.truncate(7);
  Session restored(tiny_model("reference"), options);
  restored.restore(session.snapshot());
  for (Session* s : {&session, &restored}) {
    for (size_t i = 7; i < all.size(); ++i)
      ASSERT_TRUE(same_bits(s->step(all[i]), std::span(want).subspan(i * vocab, vocab))) << i;
    EXPECT_TRUE(same_bits(draft_rows(*s, 17, 3), drafts));
  }
}

}  // namespace
}  // namespace peregrine::test
