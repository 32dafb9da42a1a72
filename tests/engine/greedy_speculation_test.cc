// Greedy decoding with drafts is greedy decoding: the same tokens from the same bits.
#include <gtest/gtest.h>

#include "engine/tiny_generation.h"

namespace peregrine::test {
namespace {

constexpr int kContext = 4096;

// A session a block length, kept between prompts: what it held before must not matter either.
Session& session_for(int drafts) {
  static std::map<int, std::unique_ptr<Session>> sessions;
  auto& session = sessions[drafts];
  if (!session)
    session = std::make_unique<Session>(
        tiny_model(), SessionOptions{.context_tokens = kContext, .draft_rows = drafts});
  return *session;
}

// The prompts of expected.jsonl, then chat prompts of all domains mixed with any tokens at all.
std::vector<Ids> all_prompts() {
  std::vector<Ids> prompts;
  for (const Expected& text : expected_texts()) prompts.push_back(text.prompt);
  std::mt19937 random(2024);
  const size_t total = prompts.size() + static_cast<size_t>(reduced(200, 8));
  while (prompts.size() < total) {
    const size_t i = prompts.size();
    prompts.push_back(i % 3 == 0 ? random_tokens(1 + random() % 250, static_cast<uint32_t>(i))
                                 : chat_ids(kDomains[random() % std::size(kDomains)], random));
  }
  if (kSanitized)  // the long ones keep their ends
    for (Ids& ids : prompts)
      if (ids.size() > 100) ids.erase(ids.begin(), ids.end() - 100);
  return prompts;
}

void expect_same(const Generated& plain, const Generated& drafted) {
  EXPECT_EQ(drafted.tokens, plain.tokens);
  EXPECT_TRUE(same_bits(drafted.rows, plain.rows));
  EXPECT_EQ(drafted.end, plain.end);
}

// 8 block lengths by 3 thresholds, each on 8 prompts or more.
TEST(GreedySpeculation, SameTokensFromTheSameBits) {
  const std::vector<Ids> prompts = all_prompts();
  const double thresholds[] = {0, 0.3, 1};
  const int max_tokens = reduced(24, 3);
  std::map<std::pair<int, double>, int> uses;
  int64_t accepted = 0, rejected = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const int drafts = 1 + static_cast<int>(i % 8);
    const double threshold = thresholds[i / 8 % 3];
    ++uses[{drafts, threshold}];
    GenerateOptions options = greedy(max_tokens);
    Session& session = session_for(drafts);
    const Generated plain = generate(session, prompts[i], options, true);
    options.draft = fixed_drafts(drafts, threshold);
    const Generated drafted = generate(session, prompts[i], options, true);
    expect_same(plain, drafted);
    ASSERT_FALSE(HasFailure()) << "prompt " << i << ", " << drafts << " drafts, threshold "
                               << threshold;
    EXPECT_EQ(plain.stats.drafted, 0);
    if (threshold == 1) {
      EXPECT_EQ(drafted.stats.verified, 0);
    }
    accepted += drafted.stats.accepted;
    rejected += drafted.stats.verified - drafted.stats.accepted;
  }
  EXPECT_EQ(uses.size(), 24u);
  for (const auto& [combination, count] : uses) EXPECT_GE(count, reduced(8, 8));
  // Both outcomes really occurred.
  EXPECT_GT(accepted, reduced(1000, 20));
  EXPECT_GT(rejected, reduced(500, 20));
}

// Blocks longer than the checkpoint's five.
TEST(GreedySpeculation, LongBlocks) {
  for (const int drafts : {7, 16}) {
    Session& session = session_for(drafts);
    for (const size_t text : {1, 3, 10}) {
      GenerateOptions options = greedy(reduced(40, 2));
      const Ids& prompt = expected_texts()[text].prompt;
      const Generated plain = generate(session, prompt, options, true);
      options.draft = fixed_drafts(drafts, 0);
      const Generated drafted = generate(session, prompt, options, true);
      expect_same(plain, drafted);
      EXPECT_GT(drafted.stats.verified_at[static_cast<size_t>(drafts) - 1], 0);
    }
  }
}

TEST(GreedySpeculation, AutomaticLength) {
  std::mt19937 random(7);
  // A model of its own, which knows nothing yet of times and gains.
  Session session(Model::load(model_path("tiny"), {.threads = 1}),
                  {.context_tokens = kContext, .draft_rows = 8});
  int64_t all_drafted = 0;
  for (const Domain domain : kDomains) {
    const Ids prompt = chat_ids(domain, random);
    GenerateOptions options = greedy(reduced(40, 2));
    const Generated plain = generate(session, prompt, options, true);
    options.draft = {.mode = DraftMode::kAuto, .drafts = 8};
    const Generated drafted = generate(session, prompt, options, true);
    expect_same(plain, drafted);
    all_drafted += drafted.stats.drafted;
  }
  // Whatever it chooses later, it measures a block first.
  EXPECT_GT(all_drafted, 0);
}

// After a replay prefill rings start inside the prompt; plain and drafted decoding continue alike.
TEST(GreedySpeculation, BehindAReplayPrefill) {
  std::mt19937 random(8);
  const SessionOptions session_options{
      .context_tokens = 1024, .prefill = PrefillMode::kReplay, .draft_rows = 5};
  for (const Ids& prompt : {expected_texts()[8].prompt, random_tokens(101, 3)}) {
    GenerateOptions options = greedy(reduced(40, 2));
    Session one(tiny_model(), session_options), two(tiny_model(), session_options);
    const Generated plain = generate(one, prompt, options, true);
    options.draft = fixed_drafts(5, 0.3);
    expect_same(plain, generate(two, prompt, options, true));
  }
}

// Counts of earlier tokens differ from row to row of a block.
TEST(GreedySpeculation, PenaltiesAndBias) {
  std::mt19937 random(9);
  Session& session = session_for(5);
  SamplingParams penalised{.temperature = 0,
                           .repetition_penalty = 1.3,
                           .presence_penalty = 0.5,
                           .frequency_penalty = 0.7};
  SamplingParams biased{.temperature = 0, .logit_bias = {{265, -100.0f}, {47, -100.0f}}};
  for (const Domain domain : kDomains) {
    const Ids prompt = chat_ids(domain, random);
    const Generated free = generate(session, prompt, greedy(reduced(40, 2)));
    for (const SamplingParams& sampling : {penalised, biased}) {
      GenerateOptions options = greedy(reduced(40, 2));
      options.sampling = sampling;
      const Generated plain = generate(session, prompt, options, true);
      options.draft = fixed_drafts(5, 0.3);
      expect_same(plain, generate(session, prompt, options, true));
      if (domain == Domain::kStory) {
        EXPECT_NE(plain.tokens, free.tokens);
      }
    }
  }
}

TEST(GreedySpeculation, TheContextEndsInsideABlock) {
  const Ids prompt = expected_texts()[3].prompt;
  for (const int room : {1, 2, 3, 4, 9}) {
    const SessionOptions session_options{.context_tokens = static_cast<int>(prompt.size()) + room,
                                         .draft_rows = 5};
    Session session(tiny_model(), session_options);
    GenerateOptions options = greedy(100);
    const Generated plain = generate(session, prompt, options);
    options.draft = fixed_drafts(5, 0);
    const Generated drafted = generate(session, prompt, options);
    EXPECT_EQ(drafted.tokens, plain.tokens);
    EXPECT_EQ(drafted.end, GenerateEnd::kLength);
    // The context holds prompt and output.
    EXPECT_EQ(plain.tokens.size(), static_cast<size_t>(room));
  }
}

}  // namespace
}  // namespace peregrine::test
