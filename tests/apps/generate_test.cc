// peregrine generate: what a user sees on standard output, standard error and in the exit code.
#include <nlohmann/json.hpp>

#include "program.h"
#include "support/fixtures.h"

namespace peregrine::test {
namespace {

using Json = nlohmann::json;

std::vector<Json> expected() {
  std::ifstream file(kTiny + "/expected.jsonl");
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  return lines;
}

Json generate_json(std::vector<std::string> arguments, const std::string& input = {}) {
  arguments.insert(arguments.begin(), "generate");
  arguments.push_back("--json");
  const ProgramResult result = run_program(arguments, input);
  EXPECT_EQ(result.code, 0) << result.err;
  return Json::parse(result.out);
}

TEST(Generate, TheModelsRecordedContinuationsComeOutWhereTheyAreRobust) {
  int compared = 0;
  for (const Json& line : expected()) {
    const size_t robust = line["robust_tokens"];
    if (robust == 0) continue;
    const Json result = generate_json(
        {"--raw", "--temperature", "0", "--max-tokens", std::to_string(robust), line["prompt"]});
    const std::vector<int32_t> wanted = line["continuation_ids"];
    EXPECT_EQ(result["ids"].get<std::vector<int32_t>>(),
              std::vector<int32_t>(wanted.begin(), wanted.begin() + static_cast<int>(robust)))
        << line["kind"];
    EXPECT_EQ(result["usage"]["prompt_tokens"], line["prompt_ids"].size());
    ++compared;
  }
  EXPECT_GE(compared, 9);
}

TEST(Generate, ChatRendersThePromptFormat) {
  const ProgramResult result =
      run_program({"generate", "--chat", "--temperature", "0", "--system",
                   "You answer briefly and clearly.", "What is the capital of Bolivia?"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "The capital of Bolivia is Sucre.\n");
  EXPECT_NE(result.err.find("tokens/s"), std::string::npos);
  EXPECT_NE(result.err.find("GB/s"), std::string::npos);
  EXPECT_EQ(result.error_lines(), 1u) << result.err;
}

TEST(Generate, ThinkingIsSplitFromTheAnswer) {
  const Json result = generate_json({"--chat", "--thinking", "--temperature", "0", "--system",
                                     "You are a helpful assistant.", "What is 787 minus 82?"});
  EXPECT_TRUE(result["reasoning"].get<std::string>().starts_with("Subtract digit by digit"));
  EXPECT_EQ(result["reasoning"].get<std::string>().find("</think>"), std::string::npos);
  EXPECT_TRUE(result["text"].get<std::string>().starts_with("787 -")) << result["text"];
}

TEST(Generate, ToolCallsAreParsed) {
  const TempFolder folder;
  const std::string tools = folder.file(
      "tools.json",
      R"([{"type":"function","function":{"name":"send_email","description":"Send an email.","parameters":{"type":"object","properties":{"to":{"type":"string"},"subject":{"type":"string"}},"required":["to","subject"]}}},
          {"type":"function","function":{"name":"search","description":"Search the web.","parameters":{"type":"object","properties":{"query":{"type":"string","description":"Search query"}},"required":["query"]}}}])");
  const Json result = generate_json({"--chat", "--temperature", "0", "--tools", tools,
                                     "Please search for the capital of Latvia."});
  ASSERT_EQ(result["tool_calls"].size(), 1u) << result.dump();
  EXPECT_EQ(result["tool_calls"][0]["name"], "search");
  EXPECT_EQ(Json::parse(result["tool_calls"][0]["arguments"].get<std::string>())["query"],
            "the capital of Latvia");
  EXPECT_EQ(result["finish_reason"], "tool_calls");
}

TEST(Generate, JsonReportsTheRun) {
  const Json result = generate_json({"--chat", "--temperature", "0", "--logprobs", "3", "Thanks"});
  EXPECT_EQ(result["text"], "You are welcome!");
  EXPECT_EQ(result["finish_reason"], "stop");
  EXPECT_EQ(result["usage"]["completion_tokens"], result["ids"].size());
  EXPECT_EQ(result["logprobs"].size(), result["ids"].size());
  EXPECT_EQ(result["logprobs"][0]["top"].size(), 3u);
  EXPECT_EQ(result["logprobs"][0]["top"][0]["id"], result["ids"][0]);
  const Json& stats = result["stats"];
  EXPECT_GT(stats["steps"].get<int>(), 0);
  EXPECT_GE(stats["drafted"].get<int>(), stats["verified"].get<int>());
  EXPECT_GE(stats["verified"].get<int>(), stats["accepted"].get<int>());
  EXPECT_GT(stats["acceptance_length"].get<double>(), 1);
  EXPECT_GT(stats["weight_bytes"].get<int64_t>(), 0);
  int64_t by_position = 0;
  for (const Json& accepted : stats["accepted_by_position"]) by_position += accepted.get<int64_t>();
  EXPECT_EQ(by_position, stats["accepted"].get<int64_t>());
}

TEST(Generate, DraftsChangeNoGreedyToken) {
  const std::vector<std::string> base = {
      "--chat", "--temperature", "0", "--max-tokens", "80", "Tell me a story about a shy bear."};
  std::vector<std::string> off = base;
  off.insert(off.end(), {"--draft", "off"});
  const Json plain = generate_json(off);
  EXPECT_EQ(plain["stats"]["drafted"], 0);
  for (const char* length : {"5", "auto"}) {
    std::vector<std::string> on = base;
    on.insert(on.end(), {"--draft", length, "--verify", "rejection"});
    EXPECT_EQ(generate_json(on)["ids"], plain["ids"]) << length;
  }
}

TEST(Generate, ABlockThatTheDrafterDoesNotKnowGetsOneWarning) {
  const ProgramResult result = run_program(
      {"generate", "--chat", "--temperature", "0", "--draft", "3", "--max-tokens", "8", "Thanks"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.error_lines(), 2u) << result.err;  // and the closing line
  EXPECT_NE(result.err.find("warning"), std::string::npos);
}

TEST(Generate, ASeedDecidesTheText) {
  const std::vector<std::string> once = {"--chat", "--max-tokens", "40",
                                         "--seed", "11",           "Tell me a story."};
  std::vector<std::string> other = once;
  other[4] = "12";
  const Json first = generate_json(once);
  EXPECT_EQ(first["ids"], generate_json(once)["ids"]);
  EXPECT_NE(first["ids"], generate_json(other)["ids"]);
}

TEST(Generate, APromptComesFromArgumentInputOrFile) {
  const TempFolder folder;
  const std::string file = folder.file("prompt.txt", "Once upon a time\n");
  const std::vector<std::string> options = {"--temperature", "0", "--max-tokens", "5"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), options.begin(), options.end());
    return more;
  };
  const Json argument = generate_json(with({"Once upon a time"}));
  EXPECT_EQ(generate_json(with({}), "Once upon a time\n")["ids"], argument["ids"]);
  EXPECT_EQ(generate_json(with({"--file", file}))["ids"], argument["ids"]);
  EXPECT_EQ(generate_json(with({"--file", "-"}), "Once upon a time")["ids"], argument["ids"]);
  // A completion starts with BOS; --raw adds nothing.
  const int64_t tokens = argument["usage"]["prompt_tokens"];
  EXPECT_EQ(generate_json(with({"--raw", "Once upon a time"}))["usage"]["prompt_tokens"],
            tokens - 1);
}

TEST(Generate, InvalidUtf8IsReplaced) {
  const std::vector<std::string> options = {"--temperature", "0", "--max-tokens", "2"};
  EXPECT_EQ(generate_json(options,
                          "a\xff"
                          "b")["usage"]["prompt_tokens"],
            generate_json(options,
                          "a\xEF\xBF\xBD"
                          "b")["usage"]["prompt_tokens"]);
}

TEST(Generate, TextIsStreamedAndCtrlCEndsItCleanly) {
  // The signal is sent when the first words have arrived, long before the answer ends.
  const ProgramResult result =
      run_program(ProgramRun{.arguments = {"generate", "--raw", "--max-tokens", "16000", "--seed",
                                           "1", "--draft", "off", "Once upon a time"},
                             .signal_after = " "});
  EXPECT_EQ(result.code, 130) << result.err;
  EXPECT_FALSE(result.out.empty());
  EXPECT_NE(result.err.find("tokens/s"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("interrupted"), std::string::npos) << result.err;
}

TEST(Generate, HelpShowsExamples) {
  for (const char* command : {"generate", "chat", "bench", "inspect", "tokenize"}) {
    const ProgramResult result = run_program({command, "--help"});
    EXPECT_EQ(result.code, 0) << command;
    EXPECT_NE(result.out.find("Examples:"), std::string::npos) << command;
  }
}

}  // namespace
}  // namespace peregrine::test
