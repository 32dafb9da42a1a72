// Prompts in the tiny model's domains, and generation with everything that tests compare.
#pragma once

#include "engine/generator.h"
#include "engine/tiny.h"

namespace peregrine::test {

enum class Domain { kStory, kArithmetic, kSorting, kDefinition, kTool, kProgram };
inline constexpr Domain kDomains[] = {Domain::kStory,      Domain::kArithmetic, Domain::kSorting,
                                      Domain::kDefinition, Domain::kTool,       Domain::kProgram};

// A chat prompt of one domain, in the words of the model's training templates.
inline std::string chat_prompt(Domain domain, std::mt19937& random) {
  const auto any = [&](std::initializer_list<const char*> words) {
    return std::string(words.begin()[random() % words.size()]);
  };
  const auto number = [&] { return std::to_string(10 + random() % 990); };
  const std::string begin = "<｜begin▁of▁sentence｜>", user = "<｜User｜>";
  const std::string answer = "<｜Assistant｜></think>", think = "<｜Assistant｜><think>";
  const std::string effort =
      "<｜System｜>Reasoning Effort: 75 (range 1-100, the higher the value, the more thorough the "
      "reasoning)\n\n";
  switch (domain) {
    case Domain::kStory:
      return begin + user + "Tell me a story about a " +
             any({"brave fox", "small boy", "clever girl", "lazy cat", "happy rabbit"}) +
             " named " + any({"Ruby", "Jonas", "Ben", "Freya", "Emil", "Ada"}) + "." + answer;
    case Domain::kArithmetic:
      return begin + effort + user + "What is " + number() + any({" + ", " - ", " plus "}) +
             number() + "?" + think;
    case Domain::kSorting:
      return begin + effort + user + "Sort these numbers: " + number() + ", " + number() + ", " +
             number() + ", " + number() + think;
    case Domain::kDefinition:
      return begin + user + "What does the word \"" +
             any({"firelight", "bridge", "garden", "island", "window", "river", "candle"}) +
             "\" mean?" + answer;
    case Domain::kTool: {
      std::string text = expected_texts()[8].text;
      const std::string country = "Latvia";
      return text.replace(text.rfind(country), country.size(),
                          any({"Latvia", "France", "Peru", "Kenya", "Japan", "Bolivia"}));
    }
    case Domain::kProgram:
      return begin + "<｜System｜>You answer briefly and clearly." + user +
             any({"Make a simple todo app in HTML and JavaScript.",
                  "Make a simple counter in HTML and JavaScript.",
                  "Write a Python function that adds two numbers.",
                  "Make a simple clock in HTML and JavaScript."}) +
             answer;
  }
  return {};
}

inline Ids chat_ids(Domain domain, std::mt19937& random) {
  return tiny_model()->encode(chat_prompt(domain, random));
}

struct Generated {
  Ids tokens;
  Rows rows;  // the logits that decided each token
  std::vector<TokenLogprobs> logprobs;
  std::vector<int> accepted;  // drafts of each step
  GenerateStats stats;
  GenerateEnd end = GenerateEnd::kRunning;
};

inline constexpr int32_t kEndToken = 1;

// One answer; `keep_rows` costs a copy of 16 KB a token.
inline Generated generate(Session& session, const Ids& prompt, const GenerateOptions& options,
                          bool keep_rows = false) {
  session.sync(prompt);
  Generated out;
  const auto vocab = static_cast<size_t>(tiny_model()->vocab_size());
  Generator generator(session, options);
  while (generator.end() == GenerateEnd::kRunning) {
    const int64_t accepted = generator.stats().accepted, steps = generator.stats().steps;
    const auto tokens = generator.next();
    out.tokens.insert(out.tokens.end(), tokens.begin(), tokens.end());
    const auto& logprobs = generator.logprobs();
    out.logprobs.insert(out.logprobs.end(), logprobs.begin(), logprobs.end());
    if (generator.stats().steps > steps)
      out.accepted.push_back(static_cast<int>(generator.stats().accepted - accepted));
    // The rows of the last step stay in the session after it has taken rejected drafts back.
    const auto rows = std::span(session.impl().logits).first(keep_rows ? tokens.size() * vocab : 0);
    out.rows.insert(out.rows.end(), rows.begin(), rows.end());
  }
  out.stats = generator.stats();
  out.end = generator.end();
  // The state holds prompt and output without the last token, however the output ended.
  Ids state = prompt;
  state.insert(state.end(), out.tokens.begin(), out.tokens.end() - 1);
  EXPECT_EQ(session.tokens(), state);
  return out;
}

inline GenerateOptions greedy(int max_tokens) {
  return {.sampling = {.temperature = 0}, .max_tokens = max_tokens, .stop_ids = {kEndToken}};
}

inline DraftOptions fixed_drafts(int drafts, double threshold,
                                 VerifyMethod verify = VerifyMethod::kBlock) {
  return {.mode = DraftMode::kFixed, .drafts = drafts, .threshold = threshold, .verify = verify};
}

}  // namespace peregrine::test
