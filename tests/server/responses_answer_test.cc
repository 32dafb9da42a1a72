// Responses, whole and streamed.
#include "server/responses_answer.h"

#include <gtest/gtest.h>

#include "server/protocol_answer.h"
#include "server/responses_input.h"

namespace peregrine {
namespace {

using nlohmann::json;
using namespace test;

Tool tool_of(const std::string& text) { return parse_tool(*parse_json(text).value, "tool"); }

ResponsesAnswerOptions options_of(bool stream) {
  return {.id = "resp_1",
          .model = "m",
          .created = 7,
          .stream = stream,
          .custom_tools = {"patch"},
          .tools = {tool_of(R"({"function":{"name":"g"},"namespace":"ns"})"),
                    tool_of(R"({"function":{"name":"patch"}})")},
          .echo = {{"store", "false"}, {"metadata", R"({"a":"b"})"}}};
}

std::shared_ptr<KeptExchange> answer(const ResponsesAnswerOptions& options,
                                     const std::vector<OutputEvent>& events,
                                     FinishReason finish = FinishReason::kStop) {
  auto exchange = std::make_shared<KeptExchange>();
  format(*make_responses_answer(exchange, options), events, end_of(finish));
  return exchange;
}

const std::vector<OutputEvent>& all_kinds() {
  static const std::vector<OutputEvent> kEvents =
      join(join({reasoning("Hm"), reasoning("m"), content("Ok"), content(".")},
                call(0, "ns::g", {"{\"a\": ", "1}"})),
           call(1, "patch", {"{\"input\": \"", "a\\", "nb", "\"", "}"}));
  return kEvents;
}

TEST(ResponsesAnswer, WholeResponse) {
  const json body = answer(options_of(false), all_kinds(), FinishReason::kToolCalls)->body();
  EXPECT_EQ(body["status"], "completed");
  EXPECT_EQ(body["metadata"], json::parse(R"({"a":"b"})"));
  ASSERT_EQ(body["output"].size(), 4u);
  EXPECT_EQ(body["output"][0]["content"][0]["text"], "Hmm");
  EXPECT_EQ(body["output"][0]["encrypted_content"], nullptr);
  EXPECT_EQ(body["output"][0]["summary"], json::array());
  EXPECT_EQ(body["output"][1]["content"][0]["text"], "Ok.");
  EXPECT_EQ(body["output"][2]["type"], "function_call");
  EXPECT_EQ(body["output"][2]["name"], "g");
  EXPECT_EQ(body["output"][2]["namespace"], "ns");
  EXPECT_EQ(body["output"][2]["arguments"], "{\"a\": 1}");
  EXPECT_EQ(body["output"][2]["call_id"], "call_0");
  EXPECT_EQ(body["output"][3]["type"], "custom_tool_call");
  EXPECT_EQ(body["output"][3]["input"], "a\nb");
  EXPECT_EQ(body["usage"], json::parse(R"({"input_tokens":12,
      "input_tokens_details":{"cached_tokens":8},"output_tokens":34,
      "output_tokens_details":{"reasoning_tokens":20},"total_tokens":46})"));
}

TEST(ResponsesAnswer, StreamHasOneItemAtATimeAndEndsWithTheWhole) {
  const auto exchange = answer(options_of(true), all_kinds(), FinishReason::kToolCalls);
  const auto events = exchange->events();
  EXPECT_TRUE(exchange->ended);
  std::string item;  // that is open
  json done = json::array();
  for (size_t i = 0; i < events.size(); ++i) {
    const auto& [name, data] = events[i];
    EXPECT_EQ(data["sequence_number"], i);
    if (name == "response.output_item.added") {
      EXPECT_EQ(item, "");
      item = data["item"]["id"];
      EXPECT_EQ(data["item"]["status"], "in_progress");
    } else if (name == "response.output_item.done") {
      EXPECT_EQ(data["item"]["id"], item);
      EXPECT_EQ(data["output_index"], done.size());
      done.push_back(data["item"]);
      item.clear();
    } else if (data.contains("item_id")) {
      EXPECT_EQ(data["item_id"], item);
    }
  }
  EXPECT_EQ(events.front().data["response"]["output"], json::array());
  EXPECT_EQ(events.front().data["response"]["usage"], nullptr);
  EXPECT_EQ(events.back().name, "response.completed");
  EXPECT_EQ(events.back().data["response"]["output"], done);
  EXPECT_EQ(exchange->event_names(),
            (std::vector<std::string>{"response.created",
                                      "response.in_progress",
                                      "response.output_item.added",
                                      "response.content_part.added",
                                      "response.reasoning_text.delta",
                                      "response.reasoning_text.done",
                                      "response.content_part.done",
                                      "response.output_item.done",
                                      "response.output_item.added",
                                      "response.content_part.added",
                                      "response.output_text.delta",
                                      "response.output_text.done",
                                      "response.content_part.done",
                                      "response.output_item.done",
                                      "response.output_item.added",
                                      "response.function_call_arguments.delta",
                                      "response.function_call_arguments.done",
                                      "response.output_item.done",
                                      "response.output_item.added",
                                      "response.custom_tool_call_input.delta",
                                      "response.custom_tool_call_input.done",
                                      "response.output_item.done",
                                      "response.completed"}));
}

TEST(ResponsesAnswer, SummaryAndSealWhenAskedFor) {
  ResponsesAnswerOptions options = options_of(true);
  options.summary = options.sealed = true;
  const auto exchange = answer(options, {reasoning("H"), reasoning("m"), content("x")});
  std::string summary;
  for (const auto& [name, data] : exchange->events())
    if (name == "response.reasoning_summary_text.delta")
      summary += data["delta"].get<std::string>();
  EXPECT_EQ(summary, "Hm");
  const json item = exchange->events().back().data["response"]["output"][0];
  EXPECT_EQ(item["summary"][0]["text"], "Hm");
  EXPECT_EQ(unseal_reasoning(item["encrypted_content"]), "Hm");
}

TEST(ResponsesAnswer, CutOffIsIncomplete) {
  const auto exchange =
      answer(options_of(true), call(0, "f", {"{\"a\": \"x"}, false), FinishReason::kLength);
  const auto last = exchange->events().back();
  EXPECT_EQ(last.name, "response.incomplete");
  EXPECT_EQ(last.data["response"]["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(last.data["response"]["output"][0]["status"], "incomplete");
}

TEST(ResponsesAnswer, CustomInputOfAnotherForm) {
  const json body = answer(options_of(false), call(0, "patch", {"{\"x\": ", "1}"}))->body();
  EXPECT_EQ(body["output"][0]["input"], "{\"x\": 1}");
}

TEST(ResponsesAnswer, Failures) {
  auto exchange = std::make_shared<KeptExchange>();
  auto formatter = make_responses_answer(exchange, options_of(true));
  formatter->begin();
  formatter->update(0, {.events = {content("x")}});
  formatter->fail({500, "broken"});
  EXPECT_TRUE(exchange->ended);
  const auto last = exchange->events().back();
  EXPECT_EQ(last.name, "response.failed");
  EXPECT_EQ(last.data["response"]["status"], "failed");
  EXPECT_EQ(last.data["response"]["error"]["message"], "broken");

  exchange = std::make_shared<KeptExchange>();
  formatter = make_responses_answer(exchange, options_of(false));
  formatter->begin();
  formatter->fail({504, "late"});
  EXPECT_EQ(exchange->response.status, 504);
}

}  // namespace
}  // namespace peregrine
