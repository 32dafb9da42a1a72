#include "text/json_text.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "text/text_fixtures.h"

namespace peregrine::test {
namespace {

std::string rewritten(const std::string& text) {
  const JsonParse parsed = parse_json(text);
  return parsed.value ? parsed.value->dump() : "error: " + parsed.problem;
}

TEST(JsonText, WritesLikePython) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"b":1,"a":[true,false,null]})", R"({"b": 1, "a": [true, false, null]})"},
      {"[]", "[]"},
      {" { } ", "{}"},
      {R"("\u0001\b\f\n\r\t\"\\\/")", R"("\u0001\b\f\n\r\t\"\\/")"},
      {R"("\u00e9\ud83e\udd80\u007f\u2028")", "\"é🦀\x7F\u2028\""},
      {R"("\ud83dx\udc00")", "\"\uFFFDx\uFFFD\""},
      {R"("\ud83d\u0041")", "\"\uFFFDA\""},
      {"\"a\xFF\"", "\"a\uFFFD\""},
      {"123456789012345678901234567890", "123456789012345678901234567890"},
      {"-0", "0"},
      {"-0.0", "-0.0"},
      {"1.0", "1.0"},
      {"1e5", "100000.0"},
      {"1e15", "1000000000000000.0"},
      {"1E16", "1e+16"},
      {"123456789.125", "123456789.125"},
      {"0.0001", "0.0001"},
      {"0.00001", "1e-05"},
      {"-1.5e300", "-1.5e+300"},
      {"5e-324", "5e-324"},
      {"1e-400", "0.0"},
      {"1e400", "Infinity"},
      {"-1e99999999999999999999", "-Infinity"},
      {"0.000000001e-99999999999999999999", "0.0"},
      {R"({"a":1,"b":2,"a":3})", R"({"a": 3, "b": 2})"},
      {R"({"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8,"a":9,"i":10,"b":11})",
       R"({"a": 9, "b": 11, "c": 3, "d": 4, "e": 5, "f": 6, "g": 7, "h": 8, "i": 10})"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(rewritten(text), expected) << text;
}

TEST(JsonText, SaysWhereTextIsNotJson) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "the text ends where a value is expected at byte 0"},
      {"[1,]", "unexpected character at byte 3"},
      {"{\"a\" 1}", "expected ':' at byte 5"},
      {"{a:1}", "expected a member name at byte 1"},
      {"[1 2]", "expected ',' or ']' at byte 3"},
      {"{\"a\":1", "expected ',' or '}' at byte 6"},
      {"\"abc", "a string is not closed at byte 4"},
      {"\"a\nb\"", "a control character in a string must be escaped at byte 2"},
      {"\"\\x\"", "unknown escape in a string at byte 3"},
      {"01", "a number has a leading zero at byte 2"},
      {"1.", "a number lacks digits at byte 2"},
      {"NaN", "unexpected character at byte 0"},
      {"nul", "unknown literal at byte 0"},
      {"1 1", "unexpected text behind the value at byte 2"},
  };
  for (const auto& [text, problem] : cases) {
    EXPECT_EQ(rewritten(text), std::string("error: ") + problem) << text;
  }
}

TEST(JsonText, LimitsNesting) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(rewritten(nested(kMaxJsonDepth)), nested(kMaxJsonDepth));
  EXPECT_EQ(rewritten(nested(kMaxJsonDepth + 1)), "error: nesting is too deep at byte 256");
  EXPECT_EQ(rewritten(std::string(1'000'000, '[')), "error: nesting is too deep at byte 256");
}

TEST(JsonText, EditsObjectsInPlace) {
  JsonValue value = *parse_json(R"({"a":1,"b":2,"c":null})").value;
  value.set("a", JsonValue(std::string("x")));
  value.set("d", JsonValue(true));
  value.erase("b");
  EXPECT_EQ(value.dump(), R"({"a": "x", "c": null, "d": true})");
  EXPECT_EQ(value.find("z"), nullptr);
  EXPECT_NE(value.find("c"), nullptr);
  EXPECT_EQ(value.find_set("c"), nullptr);
}

RC_GTEST_PROP(JsonTextProperty, DoublesReadBack, (double value)) {
  const std::string text = JsonValue(value).dump();
  RC_ASSERT(*parse_json(text).value->floating() == value);
  RC_ASSERT(nlohmann::json::parse(text).get<double>() == value);
}

RC_GTEST_PROP(JsonTextProperty, StringsReadBack, ()) {
  const auto text = *rc::gen::container<std::string>(rc::gen::inRange<char>(0, 0x7F));
  RC_ASSERT(*parse_json(json_quote(text)).value->string() == text);
}

}  // namespace
}  // namespace peregrine::test
