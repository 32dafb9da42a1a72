// OpenAI Responses bodies to prompts.
#include <gtest/gtest.h>

#include "server/responses_input.h"
#include "server/responses_request.h"
#include "text/prompt.h"

namespace peregrine {
namespace {

struct Parsed {
  ChatRequest chat;
  ResponsesRequest request;
};

Parsed parse(const std::string& text) {
  JsonParse json = parse_json(text);
  EXPECT_TRUE(json.value) << json.problem << " in " << text;
  const JsonValue body = json.value.value_or(JsonValue(JsonValue::Object()));
  RequestFields fields(body);
  Parsed parsed;
  parsed.chat = responses_chat(fields, parsed.request);
  return parsed;
}

// Without thinking.
std::string prompt_of(const std::string& members) {
  return render_prompt(parse("{\"reasoning\":{\"effort\":\"none\"}," + members + "}").chat).text();
}

std::string refused_field(const std::string& members) {
  try {
    parse("{" + members + "}");
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400);
    return error.param;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return field_of(error.what());
  }
  return "(accepted)";
}

TEST(ResponsesChat, StringInputWithInstructions) {
  EXPECT_EQ(prompt_of(R"("input":"Hi","instructions":"Be brief")"),
            "<｜begin▁of▁sentence｜><｜System｜>Be brief<｜User｜>Hi<｜Assistant｜></think>");
}

TEST(ResponsesChat, NeighbouringItemsFormOneTurn) {
  EXPECT_EQ(
      prompt_of(R"("input":[
      {"role":"developer","content":"Dev"},
      {"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},
      {"type":"reasoning","id":"r","summary":[{"type":"summary_text","text":"Hm"}]},
      {"type":"message","role":"assistant","content":[{"type":"output_text","text":"o1"}]},
      {"type":"function_call","call_id":"c1","name":"f","namespace":"ns","arguments":"{\"a\":1}"},
      {"type":"custom_tool_call","call_id":"c2","name":"patch","input":"*** x"},
      {"type":"custom_tool_call_output","call_id":"c2","output":"done"},
      {"type":"function_call_output","call_id":"c1","output":[{"type":"input_text","text":"r"}]},
      {"type":"web_search_call","id":"w"}])"),
      "<｜begin▁of▁sentence｜><｜System｜>Dev<｜User｜>a\n\nb<｜Assistant｜></think>o1\n\n"
      "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"ns::f\">\n<｜DSML｜ parameter name=\"a\" "
      "string=\"false\">1</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n<｜DSML｜ invoke "
      "name=\"patch\">\n<｜DSML｜ parameter name=\"input\" string=\"true\">*** x"
      "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls><｜end▁of▁sentence｜><｜User｜>"
      "<tool_result>r</tool_result>\n\n<tool_result>done</tool_result>"
      "<｜Assistant｜></think>");
}

TEST(ResponsesChat, ReasoningComesFromContentThenSealThenSummary) {
  const auto reasoning = [](const std::string& members) {
    return parse(R"({"input":[{"type":"reasoning",)" + members + R"(},
        {"role":"assistant","content":"x"},{"role":"user","content":"y"}]})")
        .chat.messages[0]
        .reasoning;
  };
  const std::string sealed = "\"encrypted_content\":\"" + seal_reasoning("sealed") + "\"";
  const std::string summary = R"("summary":[{"type":"summary_text","text":"short"}])";
  EXPECT_EQ(reasoning(R"("content":[{"type":"reasoning_text","text":"long"}],)" + sealed), "long");
  EXPECT_EQ(reasoning(summary + "," + sealed), "sealed");
  EXPECT_EQ(reasoning(summary + R"(,"encrypted_content":"of another server")"), "short");
}

TEST(ResponsesChat, SealedReasoningComesBack) {
  for (const char* text : {"", "a", "ab", "abc", "Grüße, 世界\n"})
    EXPECT_EQ(unseal_reasoning(seal_reasoning(text)), text);
  EXPECT_EQ(unseal_reasoning("peregrine-reasoning-1:not base 64!"), "");
  EXPECT_EQ(unseal_reasoning("peregrine-reasoning-1:=="), "");
  EXPECT_EQ(unseal_reasoning("peregrine-reasoning-1:/w=="), "\xEF\xBF\xBD");  // ill-formed UTF-8
}

TEST(ResponsesChat, AgentMessagesAreUserText) {
  EXPECT_EQ(prompt_of(R"("input":[{"type":"agent_message","author":"a","content":[
      {"type":"encrypted_content","encrypted_content":"z"},{"type":"input_text","text":"Hey"}]}])"),
            "<｜begin▁of▁sentence｜><｜User｜>Hey<｜Assistant｜></think>");
}

TEST(ResponsesChat, CustomAndNamespaceTools) {
  const Parsed parsed = parse(R"({"input":"x","tools":[
      {"type":"custom","name":"patch","description":"D",
       "format":{"type":"grammar","syntax":"lark","definition":"start: x"}},
      {"type":"namespace","name":"ns","description":"ND","tools":[
        {"type":"function","name":"g","description":"gd","parameters":{"type":"object"}}]},
      {"type":"web_search"}]})");
  ASSERT_EQ(parsed.chat.tools().size(), 2u);
  EXPECT_EQ(parsed.chat.tools()[0].schema.dump(),
            R"({"name": "patch", "description": "D\n\nThe input follows this grammar:\nstart: x", )"
            R"("parameters": {"type": "object", "properties": {"input": {"type": "string"}}, )"
            R"("required": ["input"]}})");
  EXPECT_EQ(parsed.chat.tools()[1].schema.dump(),
            R"({"name": "ns::g", "description": "ND\ngd", "parameters": {"type": "object"}})");
  EXPECT_TRUE(parsed.request.custom_tools.contains("patch"));
  EXPECT_EQ(parsed.request.ignored, std::vector<std::string>{"tools[2] (web_search)"});
}

TEST(ResponsesChat, ChoicesAndFormats) {
  const std::string tools = R"({"input":"x","tools":[{"type":"function","name":"f"}])";
  EXPECT_EQ(parse(tools + R"(,"tool_choice":"required"})").chat.tool_choice, ToolChoice::kRequired);
  EXPECT_TRUE(parse(tools + R"(,"tool_choice":"none"})").chat.tools().empty());
  EXPECT_EQ(
      parse(tools + R"(,"tool_choice":{"type":"function","name":"f"}})").chat.tool_choice_name,
      "f");
  EXPECT_TRUE(parse(R"({"input":"x","reasoning":{"summary":"auto"}})").request.summary);
  EXPECT_TRUE(parse(R"({"input":"x","include":["reasoning.encrypted_content"]})").request.sealed);
  EXPECT_NE(prompt_of(R"("input":"x","text":{"format":{"type":"json_schema","name":"n",
                        "schema":{"type":"object"}}})")
                .find("schema to reply:\n{\"type\": \"object\"}"),
            std::string::npos);
}

TEST(ResponsesChat, RefusalsNameTheField) {
  EXPECT_EQ(refused_field(""), "input");
  EXPECT_EQ(refused_field(R"("input":5)"), "input");
  EXPECT_EQ(refused_field(R"("input":[])"), "input");
  EXPECT_EQ(refused_field(R"("input":[5])"), "input[0]");
  EXPECT_EQ(refused_field(R"("input":[{}])"), "input[0].type");
  EXPECT_EQ(refused_field(R"("input":[{"role":"tool","content":"x"}])"), "input[0].role");
  EXPECT_EQ(refused_field(R"("input":[{"role":"user","content":[{"type":"input_file"}]}])"),
            "input[0].content[0].type");
  EXPECT_EQ(refused_field(R"("input":[{"type":"function_call","call_id":"c"}])"), "input[0].name");
  EXPECT_EQ(refused_field(R"("input":[{"type":"function_call_output","output":"c"}])"),
            "input[0].call_id");
  EXPECT_EQ(refused_field(R"("input":"x","tools":{})"), "tools");
  EXPECT_EQ(refused_field(R"("input":"x","tools":[{"type":"function"}])"), "tools[0].name");
  EXPECT_EQ(refused_field(R"("input":"x","tools":[{"type":"namespace","name":"n"}])"),
            "tools[0].tools");
  EXPECT_EQ(refused_field(R"("input":"x","tool_choice":"always")"), "tool_choice");
  EXPECT_EQ(refused_field(R"("input":"x","tool_choice":{"type":"function","name":"f"})"),
            "tool_choice");
  EXPECT_EQ(refused_field(R"("input":"x","reasoning":{"effort":"most"})"), "reasoning.effort");
  EXPECT_EQ(refused_field(R"("input":"x","text":{"format":{"type":"xml"}})"), "text.format.type");
}

}  // namespace
}  // namespace peregrine
