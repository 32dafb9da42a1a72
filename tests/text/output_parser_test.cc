#include "text/output_parser.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "text/json_text.h"
#include "text/text_fixtures.h"
#include "text/unicode.h"

namespace peregrine::test {
namespace {

// What the events of an output add up to.
struct Parsed {
  std::string reasoning, content;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  std::vector<std::string> ids;
  int ended = 0;
  FinishReason reason = FinishReason::kStop;

  void add(const std::vector<OutputEvent>& events) {
    for (const OutputEvent& event : events) {
      switch (event.kind) {
        case OutputEvent::Kind::kReasoning:
          reasoning += event.text;
          break;
        case OutputEvent::Kind::kContent:
          content += event.text;
          break;
        case OutputEvent::Kind::kCallBegin:
          EXPECT_EQ(event.call, static_cast<int>(calls.size()));
          calls.emplace_back(event.text, "");
          ids.push_back(event.id);
          break;
        case OutputEvent::Kind::kArguments:
          calls.at(event.call).second += event.text;
          break;
        case OutputEvent::Kind::kCallEnd:
          EXPECT_EQ(event.call, ended++);
          break;
      }
    }
  }
  nlohmann::json as_json() const {
    nlohmann::json all = {{"reasoning_content", reasoning}, {"content", content}};
    all["tool_calls"] = nlohmann::json::array();
    for (const auto& [name, arguments] : calls) {
      all["tool_calls"].push_back({{"name", name}, {"arguments", arguments}});
    }
    return all;
  }
  bool operator==(const Parsed& o) const {
    return as_json() == o.as_json() && ended == o.ended && ids == o.ids && reason == o.reason;
  }
};

std::function<std::string()> counting_ids() {
  return [n = 0]() mutable { return "call_" + std::to_string(n++); };
}

OutputParser::Options options_of(const nlohmann::ordered_json& c) {
  return {c["start"] == "reasoning" ? OutputStart::kReasoning : OutputStart::kContent,
          c["parse_tools"], counting_ids()};
}

Parsed parse(OutputParser parser, const std::vector<std::string>& pieces, StopCause cause) {
  Parsed all;
  for (const std::string& piece : pieces) all.add(parser.push(piece));
  all.add(parser.finish(cause));
  all.reason = parser.finish_reason();
  return all;
}

std::vector<std::string> characters(std::string_view text) {
  std::vector<std::string> all;
  while (!text.empty()) {
    const size_t length = decode_utf8(text).length;
    all.emplace_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  return all;
}

nlohmann::json without_namespaces(nlohmann::json expected) {
  expected.erase("finish_reason");
  for (auto& call : expected["tool_calls"]) {
    call = {{"name", call["name"]}, {"arguments", call["arguments"]}};
  }
  return expected;
}

TEST(OutputParser, ParsesEveryCaseHoweverItIsCut) {
  const auto cases = read_cases("encoding/parse_cases.jsonl");
  ASSERT_EQ(cases.size(), 59u);
  for (const auto& c : cases) {
    SCOPED_TRACE(c["id"].get<std::string>());
    const std::string output = c["output"];
    const StopCause cause =
        c["stop_cause"] == "length" ? StopCause::kLength : StopCause::kEndOfTurn;
    const Parsed whole = parse(OutputParser(options_of(c)), {output}, cause);
    EXPECT_EQ(whole.as_json(), without_namespaces(c["expected"]));
    static const std::map<std::string, FinishReason> kReasons = {
        {"stop", FinishReason::kStop},
        {"length", FinishReason::kLength},
        {"tool_calls", FinishReason::kToolCalls}};
    EXPECT_EQ(whole.reason, kReasons.at(c["expected"]["finish_reason"]));

    EXPECT_TRUE(parse(OutputParser(options_of(c)), characters(output), cause) == whole);
    for (size_t cut = 0; cut <= output.size(); ++cut) {
      const Parsed split =
          parse(OutputParser(options_of(c)), {output.substr(0, cut), output.substr(cut)}, cause);
      EXPECT_TRUE(split == whole) << "cut at byte " << cut;
    }
  }
}

TEST(OutputParser, EmitsAllThatCanBeEmittedAfterEachChunk) {
  int checked = 0;
  for (const auto& c : read_cases("encoding/parse_cases.jsonl")) {
    if (!c.contains("after_each_chunk")) continue;
    SCOPED_TRACE(c["id"].get<std::string>());
    OutputParser parser(options_of(c));
    Parsed all;
    for (size_t i = 0; i < c["chunks"].size(); ++i) {
      all.add(parser.push(c["chunks"][i].get<std::string>()));
      EXPECT_EQ(all.as_json(), nlohmann::json(c["after_each_chunk"][i])) << "chunk " << i;
    }
    ++checked;
  }
  EXPECT_EQ(checked, 9);
}

TEST(OutputParser, ReportsNamespacesOfTheCases) {
  for (const auto& c : read_cases("encoding/parse_cases.jsonl")) {
    for (const auto& call : c["expected"]["tool_calls"]) {
      if (!call.contains("namespace")) continue;
      Tool tool;
      tool.declared_name = call["bare_name"];
      tool.name_space = call["namespace"];
      const ReturnedName name = returned_name(call["name"].get<std::string>(), {tool});
      EXPECT_EQ(name.name, call["bare_name"].get<std::string>());
      EXPECT_EQ(name.name_space, call["namespace"].get<std::string>());
    }
  }
}

TEST(OutputParser, AStopStringGivesStop) {
  OutputParser parser({OutputStart::kContent, false, {}});
  parser.push("text");
  parser.finish(StopCause::kStopString);
  EXPECT_EQ(parser.finish_reason(), FinishReason::kStop);
}

TEST(OutputParser, KnowsWhenTheCallsAreComplete) {
  OutputParser parser({OutputStart::kContent, true, counting_ids()});
  parser.push(
      "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls");
  EXPECT_FALSE(parser.calls_complete());
  parser.push(">");
  EXPECT_TRUE(parser.calls_complete());
}

TEST(OutputParser, MakesDistinctCallIds) {
  const std::string id = random_call_id();
  EXPECT_EQ(id.size(), 29u);
  EXPECT_TRUE(id.starts_with("call_"));
  EXPECT_NE(id, random_call_id());
}

// Outputs built from the fragments that matter, in any order.
rc::Gen<std::string> any_output() {
  const auto fragment = rc::gen::weightedOneOf<std::string>(
      {{6, rc::gen::elementOf(std::vector<std::string>{"<｜DSML｜ calls>",
                                                       "</｜DSML｜ calls>",
                                                       "<｜DSML｜tool_calls>",
                                                       "</｜DSML｜tool_calls>",
                                                       "<｜DSML｜ invoke name=\"",
                                                       "</｜DSML｜ invoke>",
                                                       "<｜DSML｜ parameter name=\"",
                                                       "</｜DSML｜ parameter>",
                                                       "\" string=\"true\">",
                                                       "\" string=\"false\">",
                                                       "\">",
                                                       "</think>",
                                                       "<think>",
                                                       "\n",
                                                       "\n\n",
                                                       "</｜DSML｜",
                                                       "<｜DSML｜",
                                                       "{\"a\": 1}",
                                                       "[1, 2]",
                                                       "name",
                                                       "<",
                                                       "</",
                                                       "｜",
                                                       "\"",
                                                       ">",
                                                       " ",
                                                       "\\",
                                                       "漢"})},
       {1, rc::gen::map(rc::gen::inRange<int>(1, 0x7F), [](int c) { return std::string(1, c); })}});
  return rc::gen::map(rc::gen::container<std::vector<std::string>>(fragment),
                      [](const std::vector<std::string>& parts) {
                        std::string text;
                        for (const std::string& part : parts) text += part;
                        return text;
                      });
}

RC_GTEST_PROP(OutputParserProperty, CutsDoNotMatter, (bool reasoning, bool tools, bool length)) {
  const std::string output = *any_output();
  const OutputStart start = reasoning ? OutputStart::kReasoning : OutputStart::kContent;
  const StopCause cause = length ? StopCause::kLength : StopCause::kEndOfTurn;
  const auto make = [&] { return OutputParser({start, tools, counting_ids()}); };
  const Parsed whole = parse(make(), {output}, cause);
  RC_ASSERT(parse(make(), characters(output), cause) == whole);
  const size_t cut = *rc::gen::inRange<size_t>(0, output.size() + 1);
  RC_ASSERT(parse(make(), {output.substr(0, cut), output.substr(cut)}, cause) == whole);
}

RC_GTEST_PROP(OutputParserProperty, ArgumentsOfEndedCallsAreJson, (bool length)) {
  const std::string output = *any_output();
  const Parsed parsed = parse(OutputParser({OutputStart::kContent, true, counting_ids()}), {output},
                              length ? StopCause::kLength : StopCause::kEndOfTurn);
  for (int i = 0; i < parsed.ended; ++i) {
    const JsonParse arguments = parse_json(parsed.calls[i].second);
    RC_ASSERT(arguments.value && arguments.value->is_object());
  }
  if (!length) RC_ASSERT(parsed.ended == static_cast<int>(parsed.calls.size()));
}

}  // namespace
}  // namespace peregrine::test
