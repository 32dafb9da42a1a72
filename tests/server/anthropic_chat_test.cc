// Anthropic Messages bodies to prompts.
#include "server/anthropic_chat.h"

#include <gtest/gtest.h>

#include "text/prompt.h"

namespace peregrine {
namespace {

JsonValue json(std::string_view text) {
  JsonParse parsed = parse_json(text);
  EXPECT_TRUE(parsed.value) << parsed.problem;
  return parsed.value.value_or(JsonValue());
}

ChatRequest chat_of(std::string_view text) {
  const JsonValue body = json(text);
  RequestFields fields(body);
  return anthropic_chat(body, fields);
}

std::string prompt_of(std::string_view text) { return render_prompt(chat_of(text)).text(); }

// The field that a body is refused for.
std::string refused_field(std::string_view text) {
  try {
    chat_of(text);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400);
    return error.param;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return field_of(error.what());
  }
  return "(accepted)";
}

constexpr std::string_view kOff = R"("thinking":{"type":"disabled"})";

TEST(AnthropicChat, ThinksUnlessToldOtherwise) {
  constexpr std::string_view kMessages = R"("messages":[{"role":"user","content":"Hi"}])";
  const auto thinks = [&](const std::string& mode) {
    return chat_of("{" + std::string(kMessages) + mode + "}").thinking;
  };
  EXPECT_TRUE(thinks(""));
  EXPECT_TRUE(thinks(R"(,"thinking":{"type":"enabled","budget_tokens":1024})"));
  EXPECT_TRUE(thinks(R"(,"thinking":{"type":"adaptive"})"));
  EXPECT_FALSE(thinks(R"(,"thinking":{"type":"disabled"})"));
  EXPECT_EQ(chat_of("{" + std::string(kMessages) + R"(,"output_config":{"effort":"low"}})").effort,
            50);
}

TEST(AnthropicChat, SystemBlocksAreOneMessage) {
  EXPECT_EQ(prompt_of(R"({"system":[{"type":"text","text":"A","cache_control":{"type":"ephemeral"}},
      {"type":"text","text":"B"}],"messages":[{"role":"user","content":"Hi"}],)" +
                      std::string(kOff) + "}"),
            "<｜begin▁of▁sentence｜><｜System｜>A\n\nB<｜User｜>Hi<｜Assistant｜></think>");
}

TEST(AnthropicChat, ResultsAndTextsKeepTheirOrder) {
  const std::string prompt = prompt_of(R"({"messages":[
      {"role":"user","content":"Go"},
      {"role":"assistant","content":[
        {"type":"thinking","thinking":"Hm","signature":"x"},{"type":"redacted_thinking","data":"y"},
        {"type":"text","text":"One"},{"type":"text","text":"two"},
        {"type":"tool_use","id":"t1","name":"f","input":{"a":1,"b":"x"}},
        {"type":"tool_use","id":"t2","name":"g","input":{}}]},
      {"role":"user","content":[
        {"type":"text","text":"before"},
        {"type":"tool_result","tool_use_id":"t2","content":[{"type":"text","text":"r2"},
                                                            {"type":"text","text":"r3"}]},
        {"type":"tool_result","tool_use_id":"t1","content":"r1","is_error":true},
        {"type":"text","text":"after"}]}],)" +
                                       std::string(kOff) + "}");
  EXPECT_EQ(
      prompt,
      "<｜begin▁of▁sentence｜><｜User｜>Go<｜Assistant｜></think>One\n\ntwo\n\n<｜DSML｜ calls>\n"
      "<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" string=\"false\">1"
      "</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"b\" string=\"true\">x"
      "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"g\">\n\n"
      "</｜DSML｜ invoke>\n</｜DSML｜ calls><｜end▁of▁sentence｜><｜User｜>before\n\n"
      "<tool_result>r1</tool_result>\n\n<tool_result>r2\n\nr3</tool_result>\n\nafter"
      "<｜Assistant｜></think>");
}

TEST(AnthropicChat, ThinkingIsHistoryReasoning) {
  const ChatRequest chat = chat_of(R"({"messages":[{"role":"user","content":"Go"},
      {"role":"assistant","content":[{"type":"thinking","thinking":"Hm"},
                                     {"type":"text","text":"Done"}]},
      {"role":"user","content":"More"}]})");
  EXPECT_EQ(chat.messages[1].reasoning, "Hm");
}

TEST(AnthropicChat, LastAssistantMessageIsContinued) {
  EXPECT_EQ(prompt_of(R"({"messages":[{"role":"user","content":"Go"},
      {"role":"assistant","content":"So"}],)" +
                      std::string(kOff) + "}"),
            "<｜begin▁of▁sentence｜><｜User｜>Go<｜Assistant｜></think>So");
}

TEST(AnthropicChat, SystemInTheMiddle) {
  EXPECT_EQ(
      prompt_of(R"({"messages":[{"role":"user","content":"Go"},
      {"role":"system","content":"Now"},{"role":"user","content":"On"}],)" +
                std::string(kOff) + "}"),
      "<｜begin▁of▁sentence｜><｜User｜>Go<｜System｜>Now<｜User｜>On<｜Assistant｜></think>");
}

TEST(AnthropicChat, ToolsAndTheirChoice) {
  constexpr std::string_view kBody = R"({"messages":[{"role":"user","content":"Go"}],
      "tools":[{"name":"f","description":"d","input_schema":{"type":"object","x":1.50}}])";
  const auto with = [&](const std::string& choice) {
    return chat_of(std::string(kBody) + choice + "}");
  };
  const ChatRequest plain = with("");
  ASSERT_EQ(plain.tools().size(), 1u);
  EXPECT_EQ(plain.tools()[0].schema.dump(),
            R"({"name": "f", "description": "d", "parameters": {"type": "object", "x": 1.5}})");
  EXPECT_EQ(with(R"(,"tool_choice":{"type":"any"})").tool_choice, ToolChoice::kRequired);
  EXPECT_EQ(with(R"(,"tool_choice":{"type":"tool","name":"f"})").tool_choice_name, "f");
  EXPECT_TRUE(with(R"(,"tool_choice":{"type":"none"})").tools().empty());
  EXPECT_FALSE(anthropic_parallel_calls(
      json(R"({"tool_choice":{"type":"auto","disable_parallel_tool_use":true}})")));
  EXPECT_TRUE(anthropic_parallel_calls(json("{}")));
}

TEST(AnthropicChat, SchemaOfTheAnswer) {
  const std::string prompt = prompt_of(R"({"messages":[{"role":"user","content":"Go"}],
      "output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}}})");
  EXPECT_NE(prompt.find("schema to reply:\n{\"type\": \"object\"}<｜User｜>"), prompt.npos);
}

TEST(AnthropicChat, RefusalsNameTheField) {
  const auto message = [](const std::string& inner) {
    return R"({"messages":[{"role":"user","content":"a"},)" + inner + "]}";
  };
  EXPECT_EQ(refused_field("{}"), "messages");
  EXPECT_EQ(refused_field(R"({"messages":[]})"), "messages");
  EXPECT_EQ(refused_field(R"({"messages":[5]})"), "messages[0]");
  EXPECT_EQ(refused_field(R"({"messages":[{"role":"user","content":[]}]})"), "messages");
  EXPECT_EQ(refused_field(message(R"({"role":"tool","content":"x"})")), "messages[1].role");
  EXPECT_EQ(refused_field(message(R"({"role":"user","content":7})")), "messages[1].content");
  EXPECT_EQ(refused_field(message(R"({"role":"user","content":[7]})")), "messages[1].content[0]");
  EXPECT_EQ(refused_field(message(R"({"role":"user","content":[{"type":"document"}]})")),
            "messages[1].content[0].type");
  EXPECT_EQ(refused_field(message(R"({"role":"user","content":[{"type":"tool_result"}]})")),
            "messages[1].content[0].tool_use_id");
  EXPECT_EQ(refused_field(message(
                R"({"role":"assistant","content":[{"type":"tool_use","id":"a","input":[]}]})")),
            "messages[1].content[0].input");
  const auto with = [](const std::string& member) {
    return R"({"messages":[{"role":"user","content":"a"}],)" + member + "}";
  };
  EXPECT_EQ(refused_field(with(R"("system":5)")), "system");
  EXPECT_EQ(refused_field(with(R"("tools":[{"type":"bash_20250124","name":"bash"}])")),
            "tools[0].type");
  EXPECT_EQ(refused_field(with(R"("tools":[{"name":"f"}])")), "tools[0].input_schema");
  EXPECT_EQ(refused_field(with(R"("tool_choice":{"type":"tool","name":"f"})")), "tool_choice");
  EXPECT_EQ(refused_field(with(R"("thinking":{"type":"maybe"})")), "thinking.type");
  EXPECT_EQ(refused_field(with(R"("output_config":{"effort":"most"})")), "output_config.effort");
}

}  // namespace
}  // namespace peregrine
