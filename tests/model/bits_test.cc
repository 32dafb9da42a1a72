// Same bits, whatever the batch (spec: model.md section 7): a row's logits and the state it leaves
// do not depend on chunking, neighbours, threads, or tokens that were taken back. Every
// comparison is of bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "support/fixtures.h"
#include "support/model_fixture.h"

namespace peregrine::test {
namespace {

constexpr int kDecodeSteps = 5;

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void append(std::vector<float>& all, const std::vector<float>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

class Bits : public ::testing::TestWithParam<SmallModel> {
 protected:
  std::unique_ptr<ModelUnderTest> model(ModelUnderTest::Options options = {}) const {
    options.max_context = 2048;
    return GetParam().open(options);
  }
  // Logits of all positions, `chunk` at a time.
  static std::vector<float> in_chunks(ModelUnderTest& m, int slot,
                                      const std::vector<int32_t>& tokens, int64_t begin,
                                      int64_t end, int64_t chunk) {
    std::vector<float> logits;
    for (int64_t at = begin; at < end; at += chunk)
      append(logits, m.run(slot, tokens, at, std::min(at + chunk, end)));
    return logits;
  }
};

TEST_P(Bits, AnyChunking) {
  const int64_t length = 150;  // past the window
  const auto tokens = random_tokens(static_cast<size_t>(length), 1);
  const auto m = model({.slots = 1, .max_rows = 160});
  const auto whole = m->run(0, tokens, 0, length);
  const auto state = m->state_bytes(0, length);
  for (const int64_t chunk : {1, 2, 3, 7, 16}) {
    m->state->truncate(0, 0);
    EXPECT_TRUE(same_bits(in_chunks(*m, 0, tokens, 0, length, chunk), whole)) << "chunk " << chunk;
    EXPECT_EQ(m->state_bytes(0, length), state) << "chunk " << chunk;
  }
}

// Prompts around the window, the groups of two and the candidates' limit, then single tokens.
TEST_P(Bits, PrefillAndDecodeEqualALongerPrefill) {
  std::vector<int64_t> lengths{1, 2, 3, 63, 64, 65};
  if (!GetParam().scalar()) lengths.insert(lengths.end(), {127, 128, 129, 1023, 1025});
  const auto tokens = random_tokens(static_cast<size_t>(lengths.back() + kDecodeSteps), 2);
  const auto m = model({.max_rows = static_cast<int>(tokens.size())});
  const auto vocab = static_cast<size_t>(m->checkpoint.config.vocab_size);
  const auto longest = m->run(0, tokens, 0, static_cast<int64_t>(tokens.size()));
  for (const int64_t prompt : lengths) {
    m->state->truncate(0, 0);
    auto logits = m->run(0, tokens, 0, prompt);
    append(logits, in_chunks(*m, 0, tokens, prompt, prompt + kDecodeSteps, 1));
    const std::vector<float> want(
        longest.begin(), longest.begin() + static_cast<int64_t>(vocab) * (prompt + kDecodeSteps));
    EXPECT_TRUE(same_bits(logits, want)) << "prompt of " << prompt;
  }
}

// A chunk of a prompt, single tokens and a block of another sequence's in one step.
TEST_P(Bits, AloneOrAmongOthers) {
  const int64_t long_text = 140;
  const std::vector<std::vector<int32_t>> texts{random_tokens(static_cast<size_t>(long_text), 3),
                                                random_tokens(90, 4), random_tokens(17, 5)};
  const auto m = model({.slots = 4, .max_rows = 160});
  std::vector<std::vector<float>> alone;
  std::vector<std::vector<std::byte>> states;
  for (const auto& text : texts) {
    alone.push_back(m->run(3, text, 0, static_cast<int64_t>(text.size())));
    states.push_back(m->state_bytes(3, static_cast<int64_t>(text.size())));
    m->state->truncate(3, 0);
  }
  // Rows of each text a step takes, in turns, so that prefill meets decode at many positions.
  const std::vector<std::vector<int64_t>> widths{{13, 1, 30, 1, 1}, {1, 6, 1, 20}, {2, 1, 1}};
  std::vector<int64_t> done(texts.size(), 0);
  std::vector<std::vector<float>> mixed(texts.size());
  for (size_t turn = 0;; ++turn) {
    std::vector<Segment> segments;
    std::vector<size_t> of;
    for (size_t i = 0; i < texts.size(); ++i) {
      const size_t t = (i + turn) % texts.size();  // the order in the step changes too
      const int64_t end = std::min(done[t] + widths[t][turn % widths[t].size()],
                                   static_cast<int64_t>(texts[t].size()));
      if (end == done[t]) continue;
      segments.push_back(ModelUnderTest::segment(static_cast<int>(t), texts[t], done[t], end));
      of.push_back(t);
      done[t] = end;
    }
    if (segments.empty()) break;
    const auto logits = m->run(segments);
    const auto vocab = m->checkpoint.config.vocab_size;
    for (size_t s = 0; s < segments.size(); ++s) {
      const auto from = logits.begin() + static_cast<int64_t>(m->where[s].logits_row) * vocab;
      mixed[of[s]].insert(mixed[of[s]].end(), from, from + segments[s].logits * vocab);
    }
  }
  for (size_t t = 0; t < texts.size(); ++t) {
    EXPECT_TRUE(same_bits(mixed[t], alone[t])) << "text " << t;
    EXPECT_EQ(m->state_bytes(static_cast<int>(t), static_cast<int64_t>(texts[t].size())), states[t])
        << "text " << t;
  }
}

TEST_P(Bits, OneOrTwoThreads) {
  const auto tokens = random_tokens(100, 6);
  const auto end = static_cast<int64_t>(tokens.size());
  std::vector<std::vector<float>> logits;
  for (const int threads : {1, 2}) {
    const auto m = model({.threads = threads, .max_rows = 128});
    logits.push_back(m->run(0, tokens, 0, end - 3));
    append(logits.back(), in_chunks(*m, 0, tokens, end - 3, end, 1));
  }
  EXPECT_TRUE(same_bits(logits[0], logits[1]));
}

// A block of one sure token and five drafts runs, `accepted` drafts turn out right, plain steps go
// on: as if the rejected rows had never run. Rings, open groups, global rows and Engram look-back.
TEST_P(Bits, RejectedRowsLeaveNoTrace) {
  constexpr int kBlock = 6;
  const int plain_steps = 20;
  for (const int64_t prompt : {63, 70}) {
    const auto right = random_tokens(static_cast<size_t>(prompt + kBlock + plain_steps), 7);
    const auto wrong = random_tokens(right.size(), 8);
    const auto m = model({.max_rows = 128, .slack = 16, .rows_per_page = 8});
    const auto vocab = static_cast<int64_t>(m->checkpoint.config.vocab_size);
    const auto end = static_cast<int64_t>(right.size());
    auto plain = m->run(0, right, 0, prompt);
    append(plain, in_chunks(*m, 0, right, prompt, end, 1));
    const auto state = m->state_bytes(0, end);
    for (int accepted = 0; accepted < kBlock; ++accepted) {
      m->state->truncate(0, 0);
      m->run(0, right, 0, prompt);
      auto drafted = right;
      for (int64_t p = prompt + 1 + accepted; p < prompt + kBlock; ++p)
        drafted[static_cast<size_t>(p)] = wrong[static_cast<size_t>(p)];
      const int64_t sure = prompt + 1 + accepted;
      auto logits = m->run(0, drafted, prompt, prompt + kBlock);
      logits.resize(static_cast<size_t>((sure - prompt) * vocab));
      m->state->truncate(0, sure);
      append(logits, in_chunks(*m, 0, right, sure, end, 1));
      EXPECT_TRUE(same_bits(logits, {plain.begin() + prompt * vocab, plain.end()}))
          << "prompt " << prompt << ", " << accepted << " accepted";
      EXPECT_EQ(m->state_bytes(0, end), state)
          << "prompt " << prompt << ", " << accepted << " accepted";
    }
  }
}

// Every step is rejected in part; the errors, if any, would add up.
TEST_P(Bits, ManyRejectionsInARow) {
  const int64_t length = 160;
  const auto right = random_tokens(static_cast<size_t>(length), 9);
  const auto wrong = random_tokens(static_cast<size_t>(length), 10);
  const auto m = model({.max_rows = 160, .slack = 16, .rows_per_page = 8});
  const auto vocab = m->checkpoint.config.vocab_size;
  const auto plain = m->run(0, right, 0, length);
  const auto state = m->state_bytes(0, length);
  m->state->truncate(0, 0);
  std::vector<float> logits;
  std::mt19937 random(11);
  for (int64_t at = 0; at < length;) {
    const int64_t end = std::min<int64_t>(at + 1 + random() % 8, length);
    const int64_t sure = at + 1 + static_cast<int64_t>(random() % static_cast<uint32_t>(end - at));
    auto drafted = right;
    for (int64_t p = sure; p < end; ++p)
      drafted[static_cast<size_t>(p)] = wrong[static_cast<size_t>(p)];
    const auto rows = m->run(0, drafted, at, end);
    logits.insert(logits.end(), rows.begin(), rows.begin() + (sure - at) * vocab);
    m->state->truncate(0, sure);
    at = sure;
  }
  EXPECT_TRUE(same_bits(logits, plain));
  EXPECT_EQ(m->state_bytes(0, length), state);
}

TEST_P(Bits, PageSizeChangesNothing) {
  const auto tokens = random_tokens(150, 12);
  const auto end = static_cast<int64_t>(tokens.size());
  std::vector<float> first;
  for (const int rows_per_page : {64, 1, 4, 7}) {
    const auto m = model({.max_rows = 160, .rows_per_page = rows_per_page});
    auto logits = m->run(0, tokens, 0, end / 2 + 1);
    append(logits, in_chunks(*m, 0, tokens, end / 2 + 1, end, 9));
    if (first.empty()) first = logits;
    EXPECT_TRUE(same_bits(logits, first)) << rows_per_page << " rows a page";
  }
}

// Two sequences with one prefix share its pages; the second writes into a page that it shares.
TEST_P(Bits, SharedPagesAreCopiedOnWrite) {
  const int64_t prefix = 37;  // within a page of every source
  const int64_t length = 90;
  auto one = random_tokens(static_cast<size_t>(length), 13);
  auto two = random_tokens(static_cast<size_t>(length), 14);
  std::copy_n(one.begin(), prefix, two.begin());
  const auto m = model({.slots = 3, .max_rows = 96, .rows_per_page = 8});
  StateStore& state = *m->state;
  const auto two_alone = m->run(2, two, 0, length);
  const auto vocab = m->checkpoint.config.vocab_size;

  m->run(0, one, 0, prefix);
  std::vector<std::byte> recent(state.recent_bytes());
  state.save_recent(0, prefix, recent.data());
  for (int source = 0; source < state.sources(); ++source)
    state.attach(1, source, state.pages(0, source));
  state.apply(state.take_updates());
  state.load_recent(1, prefix, recent.data());
  const int before = state.pool().used_pages();

  auto one_logits = in_chunks(*m, 0, one, prefix, length, 5);
  const auto two_logits = in_chunks(*m, 1, two, prefix, length, 5);
  EXPECT_TRUE(same_bits(two_logits, {two_alone.begin() + prefix * vocab, two_alone.end()}));
  EXPECT_GT(state.pool().used_pages(), before);
  for (int source = 0; source < state.sources(); ++source)
    EXPECT_EQ(state.pages(0, source)[0], state.pages(1, source)[0]) << "full pages stay shared";

  // The first sequence was not written to by the second.
  const auto kept = m->state_bytes(0, length);
  state.truncate(2, 0);
  const auto one_alone = m->run(2, one, 0, length);
  EXPECT_TRUE(same_bits(one_logits, {one_alone.begin() + prefix * vocab, one_alone.end()}));
  EXPECT_EQ(kept, m->state_bytes(2, length));

  for (const int slot : {0, 1, 2}) state.truncate(slot, 0);
  EXPECT_EQ(state.pool().used_pages(), 0);
}

// A state saved to bytes and loaded elsewhere goes on with the same bits, at odd and even lengths.
TEST_P(Bits, SavedStateGoesOn) {
  const int64_t length = 100;
  const auto tokens = random_tokens(static_cast<size_t>(length), 15);
  const auto m = model({.slots = 2, .max_rows = 128});
  StateStore& state = *m->state;
  const auto whole = m->run(0, tokens, 0, length);
  const auto vocab = m->checkpoint.config.vocab_size;
  for (const int64_t at : {1, 2, 71, 72}) {
    state.truncate(0, 0);
    m->run(0, tokens, 0, at);
    std::vector<std::byte> recent(state.recent_bytes());
    state.save_recent(0, at, recent.data());
    ASSERT_TRUE(state.reserve(1, at, 0));
    state.apply(state.take_updates());
    state.load_recent(1, at, recent.data());
    for (int source = 0; source < state.sources(); ++source) {
      const auto rows = m->global_bytes(0, source, at);
      state.load_global(1, source, 0, state.rows_of(source, at), rows.data());
    }
    EXPECT_TRUE(same_bits(m->run(1, tokens, at, length), {whole.begin() + at * vocab, whole.end()}))
        << "saved at " << at;
    state.truncate(1, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Bits, ::testing::ValuesIn(small_models()), [](const auto& info) {
  return info.param.backend + "_" + info.param.name;
});

}  // namespace
}  // namespace peregrine::test
