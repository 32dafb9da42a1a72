// Grammars of JSON and of tool calls: what they match, and the tokens that keep to them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "peregrine/error.h"
#include "sampling/output_constraint.h"
#include "support/fixtures.h"
#include "text/call_grammar.h"
#include "text/control_tokens.h"
#include "text/json_grammar.h"
#include "text/output_parser.h"

namespace peregrine::test {
namespace {

using Grammar = std::shared_ptr<const ByteGrammar>;

Grammar of_schema(const std::string& schema) {
  const JsonValue value = *parse_json(schema).value;
  JsonGrammar json;
  return std::make_shared<ByteGrammar>(json.take(json.rule_for(value, value, "schema")));
}
Grammar any_object() {
  JsonGrammar json;
  return std::make_shared<ByteGrammar>(json.take(json.any_object()));
}

bool matches(const Grammar& grammar, const std::string& text) {
  GrammarMatcher matcher(grammar);
  auto state = matcher.start();
  for (const char c : text) state = matcher.next(state, static_cast<uint8_t>(c));
  return matcher.accepting(state);
}

// A text that the grammar matches: bytes at random, behind `most` of them such as lead out.
std::string random_text(GrammarMatcher& matcher, std::mt19937& random, size_t most) {
  static const std::string kWaysOut = "\"}]0</\xef";
  auto state = matcher.start();
  std::string text;
  while (true) {
    std::string choices, ways_out;
    for (int byte = 0; byte < 256; ++byte) {
      const auto c = static_cast<char>(byte);
      if (matcher.next(state, static_cast<uint8_t>(byte)) == GrammarMatcher::kDead) continue;
      choices += c;
      if (kWaysOut.find(c) != kWaysOut.npos) ways_out += c;
    }
    if (choices.empty() || (matcher.accepting(state) && random() % 4 == 0)) return text;
    const std::string& from = text.size() > most && !ways_out.empty() ? ways_out : choices;
    text += from[random() % from.size()];
    state = matcher.next(state, static_cast<uint8_t>(text.back()));
  }
}

TEST(Grammar, MatchesJsonObjects) {
  const Grammar g = any_object();
  for (const char* good :
       {"{}", R"({"a":1})", R"({"a": [1, -2.5e+3, true, null, "x\n\u00e9\ud83d\ude00"], "b":{}})",
        "{\n  \"a\": [\n    []\n  ]\n}", R"({"é":"日本𝄞"})"})
    EXPECT_TRUE(matches(g, good)) << good;
  for (const char* bad :
       {"", "[]", "1", "{", R"({"a":1,})", R"({"a":01})", R"({"a":1.})", R"({a:1})", R"({"a" "b"})",
        R"({"a":"\ud83d"})", "{\"a\":\"\xff\"}", "{\"a\":\"\xed\xa0\x80\"}", "{\"a\":\"\n\"}",
        R"({"a":tru})", "{} ", R"({"a":12345678901234567})"})
    EXPECT_FALSE(matches(g, bad)) << bad;
  std::string deep = "{\"a\":";
  for (int i = 0; i < 1000; ++i) deep += '[';
  GrammarMatcher matcher(g);
  auto state = matcher.start();
  for (const char c : deep) state = matcher.next(state, static_cast<uint8_t>(c));
  EXPECT_EQ(state, GrammarMatcher::kDead) << "deeper than a reader takes";
}

TEST(Grammar, EveryTextItMatchesIsJson) {
  std::mt19937 random(1);
  GrammarMatcher matcher(any_object());
  for (int i = 0; i < 100; ++i) {
    const std::string text = random_text(matcher, random, 40);
    const auto value = nlohmann::json::parse(text, nullptr, false);
    EXPECT_TRUE(value.is_object()) << text;
    EXPECT_TRUE(parse_json(text).value) << text;
  }
}

struct SchemaCase {
  const char* schema;
  std::vector<const char*> good, bad;
};

TEST(Grammar, MatchesWhatSchemasAllow) {
  const SchemaCase cases[] = {
      {R"({"type":"object","properties":{"n":{"type":"integer"},"s":{"type":"string"},
           "b":{"type":"boolean"}},"required":["n","b"],"additionalProperties":false})",
       {R"({"n":1,"s":"x","b":true})", R"({"n": -3, "b": false})"},
       {"{}", R"({"n":1})", R"({"b":true,"n":1})", R"({"n":1.5,"b":true})",
        R"({"n":1,"b":true,"z":0})", R"({"n":1,"s":null,"b":true})"}},
      {R"({"type":"object","properties":{"a":{},"b":{}}})",
       {"{}", R"({"a":[]})", R"({"b":{"x":1}})", R"({"a":1, "b":2})"},
       {R"({,"b":1})", R"({"a":1,})"}},
      {R"({"type":"array","items":{"enum":["x",2,null]}})",
       {"[]", R"(["x", 2, null])"},
       {R"(["y"])", "[[]]", "[2,]"}},
      {R"({"anyOf":[{"type":"number"},{"const":{"k":"v"}}]})", {"1.5", R"({"k": "v"})"}, {"\"1\""}},
      {R"({"type":["string","null"],"description":"d"})", {"\"a\"", "null"}, {"1"}},
      {R"({"type":"object","additionalProperties":{"type":"integer"}})",
       {"{}", R"({"any":1,"more":2})"},
       {R"({"any":"x"})"}},
      {R"({"type":"object","additionalProperties":false})", {"{}"}, {R"({"a":1})"}},
      {R"({"$ref":"#/$defs/tree","$defs":{"tree":{"type":"object","properties":{
           "children":{"type":"array","items":{"$ref":"#/$defs/tree"}}},
           "required":["children"]}}})",
       {R"({"children":[]})", R"({"children":[{"children":[]},{"children":[]}]})"},
       {"{}", R"({"children":[1]})"}},
  };
  for (const SchemaCase& c : cases) {
    const Grammar g = of_schema(c.schema);
    for (const char* text : c.good) EXPECT_TRUE(matches(g, text)) << c.schema << '\n' << text;
    for (const char* text : c.bad) EXPECT_FALSE(matches(g, text)) << c.schema << '\n' << text;
  }
}

TEST(Grammar, NamesWhatItDoesNotUnderstand) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type":"string","pattern":"a+"})", "schema.pattern"},
      {R"({"type":"object","properties":{"a":{"type":"integer","minimum":1}}})",
       "schema.properties.a.minimum"},
      {R"({"anyOf":[{"oneOf":[]}]})", "schema.anyOf[0].oneOf"},
      {R"({"type":"text"})", "schema.type"},
      {R"({"$ref":"#/$defs/none"})", "schema.$ref"},
      {R"({"type":"object","properties":{},"required":["x"]})", "schema.required"},
      {"7", "schema"}};
  for (const auto& [schema, place] : cases) {
    try {
      of_schema(schema);
      ADD_FAILURE() << schema;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).rfind(std::string(place) + " ", 0), 0u) << error.what();
    }
  }
  std::string deep = "{}";
  for (int i = 0; i < 100; ++i) deep = R"({"type":"array","items":)" + deep + "}";
  EXPECT_THROW(of_schema(deep), Error);
  EXPECT_THROW(of_schema("{\"const\":\"" + std::string(300000, 'x') + "\"}"), Error);
  // A definition that is nothing but itself: no text has this form.
  GrammarMatcher nothing(of_schema(R"({"$ref":"#"})"));
  EXPECT_EQ(nothing.start(), GrammarMatcher::kDead);
}

TEST(Grammar, NoBeginningIsADeadEnd) {
  // Member b can have no value, so it is never begun.
  const Grammar g = of_schema(R"({"type":"object","properties":{"a":{"type":"null"},
    "b":{"$ref":"#/$defs/x"}},"$defs":{"x":{"$ref":"#/$defs/x"}}})");
  EXPECT_TRUE(matches(g, R"({"a":null})"));
  GrammarMatcher matcher(g);
  auto state = matcher.start();
  for (const char c : std::string(R"({"a":null,)"))
    state = matcher.next(state, static_cast<uint8_t>(c));
  EXPECT_EQ(state, GrammarMatcher::kDead);
}

TEST(Grammar, WaysOnThatDoubleStayBounded) {
  GrammarMatcher matcher(of_schema(R"({"$defs":{"a":{"anyOf":[{"type":"array","items":{"$ref":
    "#/$defs/a"}},{"type":"array","items":{"$ref":"#/$defs/a"}},{"type":"null"}]}},
    "$ref":"#/$defs/a"})"));
  auto state = matcher.start();
  for (int i = 0; i < 24; ++i) state = matcher.next(state, '[');
  for (const char c : std::string("null")) state = matcher.next(state, static_cast<uint8_t>(c));
  for (int i = 0; i < 24; ++i) state = matcher.next(state, ']');
  EXPECT_TRUE(matcher.accepting(state));
}

TEST(Grammar, ForgettingKeepsTheWayOn) {
  std::mt19937 random(7);
  const Grammar g = any_object();
  GrammarMatcher writer(g);
  for (int i = 0; i < 30; ++i) {
    const std::string text = random_text(writer, random, 40);
    GrammarMatcher matcher(g);
    auto state = matcher.start();
    for (const char c : text) {
      state = matcher.next(state, static_cast<uint8_t>(c));
      if (random() % 3 == 0) state = matcher.forget_all_but(state);
    }
    EXPECT_TRUE(matcher.accepting(state)) << text;
  }
}

std::vector<Tool> tools() {
  const JsonValue declared = *parse_json(R"([
    {"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{
      "city":{"type":"string"},"days":{"type":"integer"},"unit":{"enum":["C","F"]},
      "odd":{"type":"string","pattern":"a"},"list":{"type":"array","minItems":3}},
      "required":["city"]}}},
    {"type":"function","function":{"name":"stop"}}])")
                                  .value;
  std::vector<Tool> result;
  for (const JsonValue& tool : *declared.array()) result.push_back(parse_tool(tool, "tools"));
  return result;
}

TEST(Grammar, MatchesCallsAsTheyAreParsed) {
  const std::vector<Tool> offered = tools();
  JsonGrammar json;
  const int root = add_calls(json, offered);
  const Grammar g = std::make_shared<ByteGrammar>(json.take(root));
  const std::string m(control::kDsml);
  const std::string open = "\n\n<" + m + " calls>\n", close = "</" + m + " calls>";
  const auto call = [&](const std::string& name, const std::string& parameters) {
    return "<" + m + " invoke name=\"" + name + "\">\n" + parameters + "</" + m + " invoke>\n";
  };
  const auto parameter = [&](const std::string& name, const char* is_string,
                             const std::string& value) {
    return "<" + m + " parameter name=\"" + name + "\" string=\"" + is_string + "\">" + value +
           "</" + m + " parameter>\n";
  };
  const std::string city = parameter("city", "true", "a < b </b> <</ é\n");
  EXPECT_TRUE(matches(g, open + call("stop", "") + close));
  EXPECT_TRUE(matches(g, open + call("weather", city) + call("stop", "") + close));
  EXPECT_TRUE(matches(
      g,
      open +
          call("weather", city + parameter("days", "false", "3") + parameter("unit", "true", "C") +
                              parameter("odd", "true", "zzz") + parameter("list", "false", "[1]")) +
          close));
  EXPECT_FALSE(matches(g, open + close));
  EXPECT_FALSE(matches(g, open + call("weather", "") + close)) << "city is required";
  EXPECT_FALSE(matches(g, open + call("other", "") + close));
  EXPECT_FALSE(matches(g, open + call("weather", city + parameter("days", "false", "x")) + close));
  EXPECT_FALSE(matches(g, open + call("weather", city + parameter("unit", "true", "K")) + close));

  // Whatever it matches is a call with arguments in JSON.
  std::mt19937 random(3);
  GrammarMatcher matcher(g);
  for (int i = 0; i < 30; ++i) {
    const std::string text = random_text(matcher, random, 100);
    int id = 0;
    OutputParser parser(
        {.parse_tools = true, .make_call_id = [&] { return std::to_string(++id); }});
    std::vector<OutputEvent> events = parser.push(text);
    EXPECT_TRUE(parser.calls_complete()) << text;
    std::string arguments;
    for (const OutputEvent& event : events) {
      EXPECT_NE(event.kind, OutputEvent::Kind::kContent) << text;
      if (event.kind == OutputEvent::Kind::kCallBegin) arguments.clear();
      if (event.kind == OutputEvent::Kind::kArguments) arguments += event.text;
      if (event.kind == OutputEvent::Kind::kCallEnd) {
        EXPECT_TRUE(nlohmann::json::parse(arguments, nullptr, false).is_object()) << text;
      }
    }
  }
}

class Constrained : public ::testing::Test {
 protected:
  const Tokenizer tokenizer = Tokenizer::load(model_path("tiny"));
  const int vocab = tokenizer.vocab_size();
  std::shared_ptr<OutputConstraint> constraint(Grammar grammar) const {
    return std::make_shared<OutputConstraint>(
        OutputConstraint{.grammar = std::move(grammar),
                         .tokens = std::make_shared<SortedTokens>(tokenizer, vocab),
                         .end_ids = {*tokenizer.id_of(control::kEos)},
                         .never = {*tokenizer.id_of(control::kDsml)}});
  }
};

TEST_F(Constrained, AllowsExactlyTheTokensThatFit) {
  const Grammar g = of_schema(R"({"type":"object","properties":{"name":{"type":"string"},
    "age":{"type":"integer"}},"required":["name","age"]})");
  ConstrainedOutput output(constraint(g));
  const int32_t eos = *tokenizer.id_of(control::kEos);
  const auto ids = tokenizer.encode(R"({"name": "Ruby é \"", "age": 42})", SpecialTokens::kPlain);
  std::string text;
  for (size_t i = 0; i <= ids.size(); ++i) {
    const TokenSet& allowed = output.allowed(output.place());
    GrammarMatcher matcher(g);
    auto state = matcher.start();
    for (const char c : text) state = matcher.next(state, static_cast<uint8_t>(c));
    for (int32_t id = 0; id < vocab; ++id) {
      auto after = state;
      for (const char c : tokenizer.token_bytes(id))
        after = matcher.next(after, static_cast<uint8_t>(c));
      const bool fits =
          tokenizer.has(id) && !tokenizer.is_added(id) && after != GrammarMatcher::kDead;
      EXPECT_EQ(allowed.has(id), id == eos ? matcher.accepting(state) : fits)
          << text << " | " << tokenizer.token_bytes(id);
    }
    if (i == ids.size()) break;
    ASSERT_TRUE(allowed.has(ids[i])) << text;
    text += tokenizer.token_bytes(ids[i]);
    output.add_output(ids[i]);
  }
}

TEST_F(Constrained, ReasoningIsFreeAndCannotEndTheAnswer) {
  auto c = constraint(any_object());
  const int32_t eos = *tokenizer.id_of(control::kEos);
  const int32_t think_end = *tokenizer.id_of(control::kThinkEnd);
  c->free_until = think_end;
  ConstrainedOutput output(c);
  const int32_t letter = tokenizer.encode("x", SpecialTokens::kPlain).front();
  const int32_t brace = tokenizer.encode("{", SpecialTokens::kPlain).front();
  EXPECT_TRUE(output.allowed(output.place()).has(letter));
  EXPECT_TRUE(output.allowed(output.place()).has(think_end));
  EXPECT_FALSE(output.allowed(output.place()).has(eos));
  // Rows of drafts: the last one is behind the end of the reasoning.
  const auto behind = output.behind(output.behind(output.place(), letter), think_end);
  EXPECT_FALSE(output.allowed(behind).has(letter));
  EXPECT_TRUE(output.allowed(behind).has(brace));
  EXPECT_TRUE(output.allowed(output.place()).has(letter)) << "drafts are not output";
  output.add_output(think_end);
  EXPECT_FALSE(output.allowed(output.place()).has(letter));
}

TEST_F(Constrained, GoesOnFromWhatHasBegun) {
  auto c = constraint(any_object());
  c->begun = R"({"a":)";
  EXPECT_TRUE(can_go_on(*c));
  ConstrainedOutput output(c);
  const int32_t one = tokenizer.encode("1", SpecialTokens::kPlain).front();
  const int32_t colon = tokenizer.encode(":", SpecialTokens::kPlain).front();
  EXPECT_TRUE(output.allowed(output.place()).has(one));
  EXPECT_FALSE(output.allowed(output.place()).has(colon));
  c->begun = "no";
  EXPECT_FALSE(can_go_on(*c));
}

}  // namespace
}  // namespace peregrine::test
