// response_format and forced calls over HTTP: whatever the model would like to say, what it says
// has the form. High temperatures make it say nearly anything.
#include "server/server_fixture.h"

namespace peregrine::test {
namespace {

using nlohmann::json;

const json kSchema = json::parse(R"({"type":"object","properties":{
  "city":{"enum":["Paris","Rome"]},"count":{"type":"integer"},"sure":{"type":"boolean"},
  "more":{"type":"array","items":{"type":"null"}}},
  "required":["city","count","sure"],"additionalProperties":false})");

const json kTools = json::parse(R"([{"type":"function","function":{"name":"get_weather",
  "parameters":{"type":"object","properties":{"unit":{"enum":["C","F"]},"days":{"type":"integer"}},
  "required":["unit","days"]}}},{"type":"function","function":{"name":"wait"}}])");

json schema_format() {
  return {{"type", "json_schema"}, {"json_schema", {{"name", "n"}, {"schema", kSchema}}}};
}

class OutputFormat : public ::testing::Test {
 protected:
  static RunningServer& drafting() {
    static RunningServer running({}, {}, {.mode = DraftMode::kFixed, .drafts = 4, .threshold = 0});
    return running;
  }
  static Answer chat(const json& more, int port = drafting().port()) {
    return Client(port).post("/v1/chat/completions", ask("Where is it?", more.dump()));
  }
  static json choice(const json& more) {
    const Answer answer = chat(more);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json()["choices"][0];
  }
  static void expect_schema(const json& value) {
    EXPECT_TRUE(value["city"] == "Paris" || value["city"] == "Rome") << value;
    EXPECT_TRUE(value["count"].is_number_integer() && value["sure"].is_boolean()) << value;
    for (const auto& [key, member] : value.items())
      EXPECT_TRUE(kSchema["properties"].contains(key));
  }
};

TEST_F(OutputFormat, SchemaHoldsAtAnyTemperature) {
  for (int seed = 0; seed < 12; ++seed) {
    const json c = choice({{"response_format", schema_format()},
                           {"temperature", seed % 3 == 0 ? 0.0 : 2.0},
                           {"seed", seed},
                           {"max_tokens", 400}});
    const std::string content = c["message"]["content"];
    const json value = json::parse(content, nullptr, false);
    if (c["finish_reason"] == "length") continue;  // a list of nulls may be long
    ASSERT_TRUE(value.is_object()) << content;
    expect_schema(value);
  }
}

TEST_F(OutputFormat, ReasoningIsFreeBeforeIt) {
  const json c = choice({{"response_format", schema_format()},
                         {"thinking", {{"type", "enabled"}}},
                         {"max_tokens", 600}});
  EXPECT_FALSE(c["message"]["reasoning_content"].get<std::string>().empty());
  ASSERT_EQ(c["finish_reason"], "stop") << c;
  expect_schema(json::parse(c["message"]["content"].get<std::string>()));
}

TEST_F(OutputFormat, AnyObjectIsAnObject) {
  int ended = 0;
  for (int seed = 0; seed < 4; ++seed) {
    const json c = choice({{"response_format", {{"type", "json_object"}}},
                           {"temperature", 1.5},
                           {"seed", seed},
                           {"logit_bias", {{"1", 20}}},
                           {"max_tokens", 150}});
    const std::string content = c["message"]["content"];
    EXPECT_EQ(content.substr(0, 1), "{");
    if (c["finish_reason"] != "stop") continue;
    ++ended;
    EXPECT_TRUE(json::parse(content, nullptr, false).is_object()) << content;
  }
  EXPECT_GT(ended, 0);
}

TEST_F(OutputFormat, DraftsDoNotChangeTheText) {
  RunningServer plain;
  const json more = {{"response_format", schema_format()}, {"max_tokens", 200}};
  EXPECT_EQ(chat(more).json()["choices"], chat(more, plain.port()).json()["choices"]);
}

TEST_F(OutputFormat, ForcedCallsAreComplete) {
  for (const json& tool_choice :
       {json("required"), json{{"type", "function"}, {"function", {{"name", "get_weather"}}}}})
    for (int seed = 0; seed < 6; ++seed) {
      const json c = choice({{"tools", kTools},
                             {"tool_choice", tool_choice},
                             {"parallel_tool_calls", false},
                             {"temperature", 2.0},
                             {"seed", seed},
                             {"max_tokens", 300}});
      ASSERT_EQ(c["finish_reason"], "tool_calls") << c;
      const json call = c["message"]["tool_calls"][0]["function"];
      const json arguments = json::parse(call["arguments"].get<std::string>());
      if (call["name"] == "wait") {
        EXPECT_EQ(tool_choice, "required") << "a named function is the one called";
        continue;
      }
      EXPECT_EQ(call["name"], "get_weather");
      EXPECT_TRUE(arguments["unit"] == "C" || arguments["unit"] == "F") << arguments;
      EXPECT_TRUE(arguments["days"].is_number_integer()) << arguments;
    }
}

TEST_F(OutputFormat, AnswersWithToolsAreJsonOrACall) {
  const json c = choice({{"tools", kTools},
                         {"response_format", schema_format()},
                         {"temperature", 2.0},
                         {"seed", 4},
                         {"max_tokens", 400}});
  if (c["message"].contains("tool_calls")) {
    EXPECT_EQ(c["finish_reason"], "tool_calls");
  } else {
    expect_schema(json::parse(c["message"]["content"].get<std::string>()));
  }
}

TEST_F(OutputFormat, AMessageIsContinuedInItsForm) {
  json body = json::parse(ask("Where is it?"));
  body["response_format"] = schema_format();
  body["messages"].push_back(
      {{"role", "assistant"}, {"content", R"({"city": "Ro)"}, {"prefix", true}});
  const auto post = [](const json& b) {
    return Client(drafting().port()).post("/v1/chat/completions", b.dump());
  };
  const json c = post(body).json()["choices"][0];
  const json value = json::parse(R"({"city": "Ro)" + c["message"]["content"].get<std::string>());
  EXPECT_EQ(value["city"], "Rome");
  body["messages"].back()["content"] = "Well, ";
  const Answer refused = post(body);
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["error"]["param"], "messages");
}

TEST_F(OutputFormat, UnknownKeywordsAreNamedInEveryProtocol) {
  const json schema = {{"type", "string"}, {"minLength", 3}};
  const auto post = [](const char* path, const json& body) {
    const Answer answer = Client(drafting().port()).post(path, body.dump());
    EXPECT_EQ(answer.status, 400);
    EXPECT_NE(answer.body.find("schema.minLength"), std::string::npos) << answer.body;
    return answer.json()["error"];
  };
  json chat = json::parse(ask("x"));
  chat["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"schema", schema}}}};
  EXPECT_EQ(post("/v1/chat/completions", chat)["param"], "response_format.json_schema.schema");
  EXPECT_EQ(
      post("/v1/responses",
           {{"input", "x"},
            {"text",
             {{"format", {{"type", "json_schema"}, {"name", "n"}, {"schema", schema}}}}}})["param"],
      "text.format.schema");
  post("/v1/messages",
       {{"max_tokens", 5},
        {"messages", {{{"role", "user"}, {"content", "x"}}}},
        {"output_config", {{"format", {{"type", "json_schema"}, {"schema", schema}}}}}});
}

}  // namespace
}  // namespace peregrine::test
