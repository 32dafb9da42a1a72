// Prompts of 300 generated requests against those that deepseek-recipe, the vendor's library, has
// rendered for them (tests/clients/recipe_corpus.py makes the file and says what it leaves out).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "server/anthropic_chat.h"
#include "server/responses_request.h"
#include "text/prompt.h"

namespace peregrine {
namespace {

ChatRequest chat_of(const std::string& protocol, const JsonValue& body) {
  if (protocol == "chat") return parse_chat_request(body);
  RequestFields fields(body);
  if (protocol == "messages") return anthropic_chat(body, fields);
  ResponsesRequest request;
  return responses_chat(fields, request);
}

// Where two prompts part, with what stands there in both.
std::string difference(const std::string& ours, const std::string& theirs) {
  size_t at = 0;
  while (at < ours.size() && at < theirs.size() && ours[at] == theirs[at]) ++at;
  const size_t from = at < 60 ? 0 : at - 60;
  return fmt::format("at byte {}\nours:   ...{}\ntheirs: ...{}", at, ours.substr(from, 160),
                     theirs.substr(from, 160));
}

TEST(RecipePrompts, AreTheSame) {
  std::ifstream file(PEREGRINE_TEST_DATA "/recipe_prompts.jsonl");
  ASSERT_TRUE(file);
  std::map<std::string, int> same;
  for (std::string line; std::getline(file, line);) {
    const JsonParse parsed = parse_json(line);
    ASSERT_TRUE(parsed.value) << parsed.problem;
    const JsonValue& request = *parsed.value->find("request");
    const std::string protocol = *parsed.value->find("protocol")->string();
    const std::string expected = *parsed.value->find("prompt")->string();
    const std::string prompt = render_prompt(chat_of(protocol, request)).text();
    EXPECT_TRUE(prompt == expected) << protocol << ' ' << difference(prompt, expected) << "\n"
                                    << request.dump();
    ++same[protocol];
  }
  EXPECT_EQ(same["chat"], 100);
  EXPECT_EQ(same["messages"], 100);
  EXPECT_EQ(same["responses"], 100);
}

}  // namespace
}  // namespace peregrine
