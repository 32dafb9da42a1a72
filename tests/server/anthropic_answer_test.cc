// Messages answers, whole and streamed.
#include "server/anthropic_answer.h"

#include <gtest/gtest.h>

#include "server/protocol_answer.h"

namespace peregrine {
namespace {

using nlohmann::json;
using namespace test;

std::shared_ptr<KeptExchange> answer(bool stream, const std::vector<OutputEvent>& events,
                                     const GenerationEnd& end) {
  auto exchange = std::make_shared<KeptExchange>();
  AnthropicAnswerOptions options{.id = "msg_1", .model = "m", .prompt_tokens = 12};
  const auto formatter =
      stream ? make_anthropic_stream(exchange, options) : make_anthropic_object(exchange, options);
  format(*formatter, events, end);
  return exchange;
}

const std::vector<OutputEvent>& all_kinds() {
  static const std::vector<OutputEvent> kEvents =
      join(join({reasoning("Hm"), reasoning("m"), content("Ok"), content(".")},
                call(0, "f", {"{\"a\": ", "1}"})),
           call(1, "ns::g", {"{}"}));
  return kEvents;
}

TEST(AnthropicAnswer, WholeMessage) {
  const auto body = answer(false, all_kinds(), end_of(FinishReason::kToolCalls))->body();
  EXPECT_EQ(body["content"], json::parse(R"([
      {"type":"thinking","thinking":"Hmm","signature":"unsigned"},{"type":"text","text":"Ok."},
      {"type":"tool_use","id":"toolu_0","name":"f","input":{"a":1}},
      {"type":"tool_use","id":"toolu_1","name":"ns::g","input":{}}])"));
  EXPECT_EQ(body["stop_reason"], "tool_use");
  EXPECT_EQ(body["stop_sequence"], nullptr);
  EXPECT_EQ(body["role"], "assistant");
  EXPECT_EQ(body["usage"], json::parse(R"({"input_tokens":4,"cache_creation_input_tokens":0,
      "cache_read_input_tokens":8,"output_tokens":34})"));
}

TEST(AnthropicAnswer, StreamedBlocksDoNotOverlap) {
  const auto exchange = answer(true, all_kinds(), end_of(FinishReason::kToolCalls));
  EXPECT_TRUE(exchange->ended);
  EXPECT_EQ(
      exchange->event_names(),
      (std::vector<std::string>{
          "message_start", "ping", "content_block_start", "content_block_delta",
          "content_block_stop", "content_block_start", "content_block_delta", "content_block_stop",
          "content_block_start", "content_block_delta", "content_block_stop", "content_block_start",
          "content_block_delta", "content_block_stop", "message_delta", "message_stop"}));
  int open = -1, next = 0;
  std::string arguments;
  for (const auto& [name, data] : exchange->events()) {
    if (name == "content_block_start") {
      EXPECT_EQ(open, -1);
      open = next++;
    }
    if (name.starts_with("content_block")) {
      EXPECT_EQ(data["index"], open);
    }
    if (name == "content_block_stop") open = -1;
    if (name == "content_block_delta" && open == 2)
      arguments += data["delta"]["partial_json"].get<std::string>();
    if (name == "message_delta") {
      EXPECT_EQ(data["delta"]["stop_reason"], "tool_use");
      EXPECT_EQ(data["usage"]["output_tokens"], 34);
      EXPECT_EQ(data["usage"]["cache_read_input_tokens"], 8);
    }
  }
  EXPECT_EQ(arguments, "{\"a\": 1}");
}

TEST(AnthropicAnswer, ThinkingEndsWithItsSignature) {
  const auto exchange = answer(true, {reasoning("Hm"), content("x")}, end_of(FinishReason::kStop));
  const auto events = exchange->events();
  EXPECT_EQ(events[4].data["delta"]["type"], "signature_delta");
  EXPECT_EQ(events[5].name, "content_block_stop");
}

TEST(AnthropicAnswer, StopReasons) {
  EXPECT_EQ(answer(false, {}, end_of(FinishReason::kStop))->body()["stop_reason"], "end_turn");
  EXPECT_EQ(answer(false, {}, end_of(FinishReason::kLength))->body()["stop_reason"], "max_tokens");
  GenerationEnd stopped = end_of(FinishReason::kStop);
  stopped.stop_string = "END";
  const auto body = answer(false, {content("x")}, stopped)->body();
  EXPECT_EQ(body["stop_reason"], "stop_sequence");
  EXPECT_EQ(body["stop_sequence"], "END");
}

TEST(AnthropicAnswer, ArgumentsThatWereCutOffAreEmpty) {
  const auto body =
      answer(false, call(0, "f", {"{\"a\": \"x"}, false), end_of(FinishReason::kLength))->body();
  EXPECT_EQ(body["content"][0]["input"], json::object());
}

TEST(AnthropicAnswer, NoOutputIsNoBlock) {
  EXPECT_EQ(answer(false, {}, end_of(FinishReason::kStop))->body()["content"], json::array());
  EXPECT_EQ(answer(true, {}, end_of(FinishReason::kStop))->event_names(),
            (std::vector<std::string>{"message_start", "ping", "message_delta", "message_stop"}));
}

TEST(AnthropicAnswer, Failures) {
  auto exchange = std::make_shared<KeptExchange>();
  const auto whole = make_anthropic_object(exchange, {});
  whole->begin();
  whole->fail({503, "busy"});
  EXPECT_EQ(exchange->response.status, 503);
  EXPECT_EQ(exchange->body()["error"]["type"], "overloaded_error");

  exchange = std::make_shared<KeptExchange>();
  const auto stream = make_anthropic_stream(exchange, {});
  stream->begin();
  stream->fail({500, "broken"});
  EXPECT_TRUE(exchange->ended);
  EXPECT_EQ(exchange->events().back().name, "error");
  EXPECT_EQ(exchange->events().back().data["error"]["type"], "api_error");
}

}  // namespace
}  // namespace peregrine
