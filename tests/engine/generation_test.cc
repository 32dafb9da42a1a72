// What generation reports and where it ends: log-probabilities, seeds, limits and stops, with and
// without drafts.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/tiny_generation.h"

namespace peregrine::test {
namespace {

class Generation : public ::testing::Test {
 protected:
  Generation()
      : session_(tiny_model(), {.context_tokens = 1024, .draft_rows = kMaxDrafts}),
        story_(expected_texts()[1].prompt),
        sum_(expected_texts()[3].prompt) {}

  Session session_;
  Ids story_, sum_;
};

TEST_F(Generation, LogprobsAreThoseOfPlainDecoding) {
  for (const Ids& prompt : {story_, sum_}) {
    GenerateOptions options = greedy(30);
    options.sampling.logprobs = 5;
    const Generated plain = generate(session_, prompt, options);
    options.draft = fixed_drafts(5, 0);
    const Generated drafted = generate(session_, prompt, options);
    ASSERT_GT(drafted.stats.accepted, 5);
    ASSERT_EQ(plain.logprobs.size(), plain.tokens.size());
    ASSERT_EQ(drafted.logprobs.size(), plain.logprobs.size());
    for (size_t i = 0; i < plain.tokens.size(); ++i) {
      const TokenLogprobs &a = plain.logprobs[i], &b = drafted.logprobs[i];
      EXPECT_EQ(a.chosen.id, plain.tokens[i]);
      EXPECT_EQ(a.top[0].id, a.chosen.id);  // greedy
      EXPECT_EQ(b.chosen.id, a.chosen.id);
      EXPECT_EQ(b.chosen.logprob, a.chosen.logprob) << i;
      ASSERT_EQ(a.top.size(), 5u);
      ASSERT_EQ(b.top.size(), 5u);
      for (size_t n = 0; n < 5; ++n) {
        EXPECT_EQ(b.top[n].id, a.top[n].id);
        EXPECT_EQ(b.top[n].logprob, a.top[n].logprob);
      }
    }
  }
}

// Of the model's distribution, whatever drew the token: recomputed from the rows it stands on.
TEST_F(Generation, LogprobsOfSampledTokens) {
  const auto vocab = static_cast<size_t>(tiny_model()->vocab_size());
  GenerateOptions options{.sampling = {.temperature = 1.3, .top_p = 0.95, .seed = 5, .logprobs = 0},
                          .max_tokens = 30,
                          .draft = fixed_drafts(5, 0)};
  const Generated drafted = generate(session_, story_, options, true);
  ASSERT_EQ(drafted.logprobs.size(), drafted.tokens.size());
  for (size_t i = 0; i < drafted.tokens.size(); ++i) {
    const auto row = std::span(drafted.rows).subspan(i * vocab, vocab);
    double sum = 0;
    for (const float logit : row) sum += std::exp(static_cast<double>(logit));
    const double want = row[static_cast<size_t>(drafted.tokens[i])] - std::log(sum);
    EXPECT_EQ(drafted.logprobs[i].chosen.id, drafted.tokens[i]);
    EXPECT_NEAR(drafted.logprobs[i].chosen.logprob, want, 1e-9);
    EXPECT_TRUE(drafted.logprobs[i].top.empty());
  }
  // And these rows are what plain decoding of the same tokens computes.
  session_.truncate(static_cast<int64_t>(story_.size()) - 1);
  session_.step(story_.back());
  for (size_t i = 0; i < drafted.tokens.size(); ++i) {
    ASSERT_TRUE(same_bits(session_.logits(), std::span(drafted.rows).subspan(i * vocab, vocab)))
        << i;
    session_.step(drafted.tokens[i]);
  }
}

TEST_F(Generation, AskingForLogprobsChangesNothingElse) {
  GenerateOptions options{.sampling = {.seed = 9}, .max_tokens = 30, .draft = fixed_drafts(5, 0.3)};
  const Generated without = generate(session_, story_, options);
  EXPECT_TRUE(without.logprobs.empty());
  options.sampling.logprobs = kMaxTopLogprobs;
  EXPECT_EQ(generate(session_, story_, options).tokens, without.tokens);
}

TEST_F(Generation, ASeedRepeatsTheTextAndOthersDoNot) {
  for (const DraftOptions& draft :
       {DraftOptions{}, fixed_drafts(5, 0.3), fixed_drafts(3, 0, VerifyMethod::kRejection)}) {
    GenerateOptions options{.sampling = {.temperature = 1.2, .seed = 1, .logprobs = 1},
                            .max_tokens = 40,
                            .draft = draft};
    const Generated first = generate(session_, story_, options, true);
    generate(session_, sum_, options);  // what ran between does not matter
    const Generated second = generate(session_, story_, options, true);
    EXPECT_EQ(second.tokens, first.tokens);
    EXPECT_TRUE(same_bits(second.rows, first.rows));
    EXPECT_EQ(second.accepted, first.accepted);
    options.sampling.seed = 2;
    EXPECT_NE(generate(session_, story_, options).tokens, first.tokens);
    // Without a seed one is drawn.
    options.sampling.seed.reset();
    EXPECT_NE(generate(session_, story_, options).tokens,
              generate(session_, story_, options).tokens);
  }
}

TEST_F(Generation, PenaltiesWithASeedRepeat) {
  GenerateOptions options{.sampling = {.temperature = 0.9,
                                       .top_k = 20,
                                       .repetition_penalty = 1.2,
                                       .frequency_penalty = 0.5,
                                       .seed = 3},
                          .max_tokens = 30,
                          .draft = fixed_drafts(5, 0)};
  EXPECT_EQ(generate(session_, story_, options).tokens, generate(session_, story_, options).tokens);
}

// Every length, so that the cut falls on every place of a block.
TEST_F(Generation, MaxTokensCutsInsideABlock) {
  const Generated plain = generate(session_, sum_, greedy(24), true);
  const auto vocab = static_cast<size_t>(tiny_model()->vocab_size());
  for (int most = 1; most <= 24; ++most) {
    GenerateOptions options = greedy(most);
    options.draft = fixed_drafts(5, 0);
    options.sampling.logprobs = 0;
    const Generated cut = generate(session_, sum_, options, true);
    EXPECT_EQ(cut.tokens, Ids(plain.tokens.begin(), plain.tokens.begin() + most));
    EXPECT_TRUE(
        same_bits(cut.rows, std::span(plain.rows).first(static_cast<size_t>(most) * vocab)));
    EXPECT_EQ(cut.logprobs.size(), cut.tokens.size());
    EXPECT_EQ(cut.end, GenerateEnd::kLength);
    EXPECT_EQ(cut.stats.tokens, most);
  }
}

TEST_F(Generation, AStopTokenCutsInsideABlock) {
  const Generated plain = generate(session_, sum_, greedy(40));
  int inside = 0;
  for (const int32_t stop : plain.tokens) {
    const auto place = std::find(plain.tokens.begin(), plain.tokens.end(), stop);
    for (const int drafts : {5, 7}) {
      GenerateOptions options = greedy(60);
      options.stop_ids = {stop, kEndToken};
      options.sampling.logprobs = 0;
      options.draft = fixed_drafts(drafts, 0);
      const Generated cut = generate(session_, sum_, options);
      EXPECT_EQ(cut.tokens, Ids(plain.tokens.begin(), place + 1)) << "stop " << stop;
      EXPECT_EQ(cut.end, GenerateEnd::kStop);
      EXPECT_EQ(cut.logprobs.size(), cut.tokens.size());
      int64_t whole_blocks = 1;
      for (const int accepted : cut.accepted) whole_blocks += accepted + 1;
      inside += whole_blocks > static_cast<int64_t>(cut.tokens.size()) ? 1 : 0;
    }
  }
  EXPECT_GT(inside, 5);
}

TEST_F(Generation, MaskedTokensNeverAppear) {
  GenerateOptions options = greedy(30);
  const Generated free = generate(session_, story_, options);
  options.masked_ids = {free.tokens[1], free.tokens[4]};
  const Generated plain = generate(session_, story_, options);
  options.draft = fixed_drafts(5, 0);
  const Generated drafted = generate(session_, story_, options);
  EXPECT_EQ(drafted.tokens, plain.tokens);
  for (const int32_t id : options.masked_ids)
    EXPECT_EQ(std::count(plain.tokens.begin(), plain.tokens.end(), id), 0);
}

TEST_F(Generation, TheReportAddsUp) {
  GenerateOptions options{.sampling = {.seed = 4}, .max_tokens = 60, .draft = fixed_drafts(5, 0.3)};
  const Generated out = generate(session_, story_, options);
  const GenerateStats& s = out.stats;
  EXPECT_EQ(s.tokens, 60);
  EXPECT_EQ(s.steps, static_cast<int64_t>(out.accepted.size()));
  // One token from the prompt's logits, then accepted + 1 a step.
  EXPECT_EQ(s.tokens, 1 + s.steps + s.accepted);
  EXPECT_EQ(s.acceptance_length(),
            static_cast<double>(s.steps + s.accepted) / static_cast<double>(s.steps));
  EXPECT_GE(s.drafted, s.verified);
  int64_t verified = 0, accepted = 0;
  for (size_t i = 0; i < kMaxDrafts; ++i) {
    verified += s.verified_at[i];
    accepted += s.accepted_at[i];
    EXPECT_LE(s.accepted_at[i], s.verified_at[i]);
    if (i > 0) {
      EXPECT_LE(s.accepted_at[i], s.accepted_at[i - 1]);
    }
  }
  EXPECT_EQ(verified, s.verified);
  EXPECT_EQ(accepted, s.accepted);
  EXPECT_EQ(s.verified_at[5], 0);
}

TEST_F(Generation, OptionsOutOfRange) {
  session_.sync(sum_);
  const auto refused = [&](const std::string& words, const GenerateOptions& options) {
    expect_refusal(ErrorKind::kInvalidArgument, words, [&] { Generator g(session_, options); });
  };
  refused("max tokens 0", greedy(0));
  GenerateOptions options = greedy(5);
  options.draft = fixed_drafts(0, 0.3);
  refused("draft block of 0", options);
  options.draft = fixed_drafts(17, 0.3);
  refused("draft block of 17", options);
  options.draft = fixed_drafts(5, 1.5);
  refused("draft threshold 1.5", options);
  options.draft = fixed_drafts(5, std::nan(""));
  refused("draft threshold nan", options);
  options = greedy(5);
  options.sampling.temperature = 3;
  refused("temperature", options);
  session_.truncate(session_.length() - 1);
  refused("no logits", greedy(5));
}

}  // namespace
}  // namespace peregrine::test
