// The server's parts without sockets: stop strings, visible tokens, remembered turns, HTTP parsing.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "engine/model_impl.h"
#include "server/auth.h"
#include "server/http_parser.h"
#include "server/http_router.h"
#include "server/json_writer.h"
#include "server/sampled_turns.h"
#include "server/stop_matcher.h"
#include "server/token_channels.h"
#include "support/fixtures.h"
#include "text/tokenizer.h"

namespace peregrine::test {
namespace {

// -- stop strings --------------------------------------------------------------------------------

struct Shown {
  std::string text;
  std::optional<std::string> match;
  bool operator==(const Shown&) const = default;
};

// The definition: the match that ends first, of several ending there the longest.
Shown by_definition(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    const std::string* best = nullptr;
    for (const std::string& stop : stops)
      if (!stop.empty() && text.substr(0, end).ends_with(stop) &&
          (!best || stop.size() > best->size()))
        best = &stop;
    if (best) return {text.substr(0, end - best->size()), *best};
  }
  return {text, std::nullopt};
}

TEST(StopMatcher, EqualsTheDefinitionHoweverTheTextIsCut) {
  const bool ok = rc::check([] {
    const auto letter = rc::gen::element('a', 'b', 'c');
    const auto word = rc::gen::container<std::string>(letter);
    const auto stops =
        *rc::gen::resize(4, rc::gen::container<std::vector<std::string>>(rc::gen::resize(4, word)));
    const auto pieces = *rc::gen::container<std::vector<std::string>>(word);
    StopMatcher matcher(stops);
    std::string all;
    Shown shown;
    for (const std::string& piece : pieces) {
      all += piece;
      shown.text += matcher.push(piece);
      // What has been let through is never taken back.
      RC_ASSERT(by_definition(all, stops).text.starts_with(shown.text));
    }
    if (matcher.matched()) {
      shown.match = matcher.match();
    } else {
      shown.text += matcher.flush();
    }
    RC_ASSERT(shown == by_definition(all, stops));
  });
  EXPECT_TRUE(ok);
}

// -- visible tokens ------------------------------------------------------------------------------

TokenLogprobs token(int32_t id) { return {.chosen = {.id = id, .logprob = -1}, .top = {}}; }

TEST(TokenChannels, MarkupIsDroppedAndHeldTextWaits) {
  TokenChannels channels;
  channels.made(token(1), "think");
  channels.made(token(2), "</think>");
  channels.made(token(3), "ans");
  channels.shown(true, "think");
  channels.shown(false, "an");  // a part is held back
  auto visible = channels.take();
  ASSERT_EQ(visible.size(), 1u);
  EXPECT_TRUE(visible[0].reasoning);
  channels.made(token(4), "");  // half a character
  channels.made(token(5), "wer");
  channels.shown(false, "swer");
  visible = channels.take();
  ASSERT_EQ(visible.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(visible[static_cast<size_t>(i)].logprobs.chosen.id, 3 + i);
    EXPECT_FALSE(visible[static_cast<size_t>(i)].reasoning);
  }
}

// -- remembered turns ----------------------------------------------------------------------------

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = Tokenizer::load(model_path("tiny"));
  return loaded;
}

Message said(Role role, const std::string& text, std::vector<ToolCall> calls = {}) {
  Message message;
  message.role = role;
  message.content.push_back({.text = text});
  message.tool_calls = std::move(calls);
  return message;
}

ToolCall call(const std::string& arguments) {
  return {"", "get_weather", parse_arguments(JsonValue(arguments))};
}

ConversationKey key_of(const std::vector<Message>& messages, const std::string& owner = "me") {
  ConversationKey key(owner);
  for (const Message& message : messages) key.add(message);
  return key;
}

TEST(SampledTurns, ChangesWithoutMeaningFindTheTurnOthersDoNot) {
  const Message question = said(Role::kUser, "Q");
  const Message answer = said(Role::kAssistant, "A", {call(R"({"a":1.0,"b":[1,2]})")});
  SampledTurns turns(10000);
  turns.put(key_of({question, answer}), {.ids = {1, 2, 3}, .reasoned = true, .reasoning = "why"});

  Message same = said(Role::kAssistant, "\n A  ", {call(R"({ "b": [1, 2], "a": 1 })")});
  ASSERT_TRUE(turns.find(key_of({question, same}), same));
  same.reasoning = " why ";
  EXPECT_TRUE(turns.find(key_of({question, same}), same));
  same.reasoning = "because";
  EXPECT_FALSE(turns.find(key_of({question, same}), same)) << "reasoning was edited";

  for (const Message& other :
       {said(Role::kAssistant, "B", answer.tool_calls), said(Role::kAssistant, "A"),
        said(Role::kAssistant, "A", {call(R"({"a":2,"b":[1,2]})")})})
    EXPECT_FALSE(turns.find(key_of({question, other}), other));
  const Message other_question = said(Role::kUser, "Q ");
  EXPECT_FALSE(turns.find(key_of({other_question, answer}), answer));
  EXPECT_FALSE(turns.find(key_of({question, answer}, "you"), answer));
}

TEST(SampledTurns, StaysWithinItsBoundAndForgetsTheOldest) {
  SampledTurns turns(1000);
  const auto conversation = [](int i) {
    return std::vector<Message>{said(Role::kUser, std::to_string(i)), said(Role::kAssistant, "A")};
  };
  const auto known = [&](int i) {
    return turns.find(key_of(conversation(i)), conversation(i)[1]) != nullptr;
  };
  for (int i = 0; i < 3; ++i)
    turns.put(key_of(conversation(i)), {std::vector<int32_t>(200), false, ""});
  EXPECT_TRUE(known(0));  // used: now 1 is the oldest
  turns.put(key_of(conversation(3)), {std::vector<int32_t>(200), false, ""});
  EXPECT_TRUE(known(0));
  EXPECT_FALSE(known(1));
  EXPECT_TRUE(known(3));
  turns.put(key_of(conversation(4)), {std::vector<int32_t>(2000), false, ""});
  EXPECT_FALSE(known(4)) << "larger than everything";
  EXPECT_LE(turns.tokens(), 1000u);
}

// A known turn's tokens stand where the text's would, and nothing else changes.
TEST(SampledTurns, KnownTurnsReplaceExactlyTheirText) {
  ChatRequest request;
  request.thinking = false;
  request.messages = {said(Role::kUser, "One"), said(Role::kAssistant, "Two words"),
                      said(Role::kUser, "Three")};
  const RenderedPrompt prompt = render_prompt(request);
  const std::vector<int32_t> plain = encode_prompt(prompt, tokenizer());
  EXPECT_EQ(encode_with_turns(prompt, tokenizer(), {nullptr}), plain);
  EXPECT_EQ(encode_with_turns(prompt, tokenizer(), {}), plain);

  SampledTurn turn{.ids = {}, .reasoned = false, .reasoning = {}};
  for (const char c : std::string("Two words"))
    for (const int32_t id : tokenizer().encode(std::string(1, c), SpecialTokens::kPlain))
      turn.ids.push_back(id);
  const auto known = std::make_shared<const SampledTurn>(turn);
  const std::vector<int32_t> ids = encode_with_turns(prompt, tokenizer(), {known});
  EXPECT_NE(ids, plain);
  EXPECT_EQ(tokenizer().decode(ids), tokenizer().decode(plain));
  EXPECT_NE(std::search(ids.begin(), ids.end(), turn.ids.begin(), turn.ids.end()), ids.end());

  turn.reasoned = true;  // sampled in another mode: the text is rendered
  EXPECT_EQ(encode_with_turns(prompt, tokenizer(), {std::make_shared<const SampledTurn>(turn)}),
            plain);
}

// -- HTTP ----------------------------------------------------------------------------------------

struct Parsed {
  HttpParser::State state;
  int status = 0;
  HttpRequest request;
};

Parsed parse_http(const std::string& bytes, size_t piece, const HttpLimits& limits = {}) {
  HttpParser parser(limits);
  std::string inbox;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    inbox += bytes.substr(at, piece);
    inbox.erase(0, parser.feed(inbox));
  }
  Parsed result{parser.state(), parser.error_status(), {}};
  if (result.state == HttpParser::State::kComplete) result.request = parser.take_request();
  return result;
}

TEST(HttpParser, ReadsARequestHoweverItIsCut) {
  const std::string bytes =
      "POST /v1/x?beta=true HTTP/1.1\r\nHost: a\r\nX-Two:  b \r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n2;e=1\r\nde\r\n0\r\n\r\n";
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    const Parsed parsed = parse_http(bytes, piece);
    ASSERT_EQ(parsed.state, HttpParser::State::kComplete) << piece;
    EXPECT_EQ(parsed.request.path, "/v1/x");
    EXPECT_EQ(parsed.request.query, "beta=true");
    EXPECT_EQ(parsed.request.body, "abcde");
    EXPECT_EQ(*parsed.request.header("x-two"), "b");
  }
}

TEST(HttpParser, RefusesWhatCouldBeReadInTwoWays) {
  const std::string post = "POST / HTTP/1.1\r\nHost: a\r\n";
  const std::pair<std::string, int> cases[] = {
      {post + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400},
      {post + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400},
      {post + "Content-Length: +3\r\n\r\nabc", 400},
      {post + "Content-Length: 3, 4\r\n\r\nabc", 400},
      {post + "Content-Length: -1\r\n\r\n", 400},
      {post + "Content-Length: 99999999999999999999999\r\n\r\n", 400},
      {post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
      {post + "Transfer-Encoding: identity\r\nContent-Length: 1\r\n\r\na", 501},
      {post + "Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n", 400},
      {post + "Bad Header: x\r\n\r\n", 400},
      {post + "X : x\r\n\r\n", 400},
      {"GET / HTTP/1.1\nHost: a\n\n\r\n\r\n", 400},  // a bare LF ends no line
      {"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"GET x HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET / HTTP/3.0\r\nHost: a\r\n\r\n", 400},
      {"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {std::string("GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", 35), 400},
      {"GET / HTTP/1.1\r\nHost: a\r\nExpect: tea\r\n\r\n", 417},
  };
  for (const auto& [bytes, status] : cases)
    for (const size_t piece : {bytes.size(), size_t{1}}) {
      const Parsed parsed = parse_http(bytes, piece);
      EXPECT_EQ(parsed.state, HttpParser::State::kFailed) << bytes;
      EXPECT_EQ(parsed.status, status) << bytes;
    }
}

TEST(HttpParser, LimitsHoldForBothKindsOfBody) {
  const HttpLimits limits{.header_bytes = 1000, .body_bytes = 10};
  const std::string post = "POST / HTTP/1.1\r\nHost: a\r\n";
  EXPECT_EQ(parse_http(post + "Content-Length: 11\r\n\r\n", 7, limits).status, 413);
  EXPECT_EQ(
      parse_http(post + "Transfer-Encoding: chunked\r\n\r\n6\r\nabcdef\r\n6\r\nabcdef\r\n0\r\n\r\n",
                 7, limits)
          .status,
      413);
  EXPECT_EQ(parse_http(post + "X: " + std::string(2000, 'x') + "\r\n\r\n", 7, limits).status, 431);
  EXPECT_EQ(parse_http(post + "Content-Length: 10\r\n\r\n0123456789", 7, limits).state,
            HttpParser::State::kComplete);
}

// -- small ones ----------------------------------------------------------------------------------

TEST(HttpRouter, PathsWithAndWithoutPrefixAreOne) {
  for (const char* path :
       {"/messages", "/v1/messages", "/anthropic/v1/messages", "/beta/messages", "/v1/messages/"})
    EXPECT_EQ(HttpRouter::plain_path(path), "/messages") << path;
  EXPECT_EQ(HttpRouter::plain_path("/v11/messages"), "/v11/messages");
  EXPECT_EQ(HttpRouter::plain_path("/"), "/");
  EXPECT_EQ(HttpRouter::plain_path("/v1"), "/");
}

TEST(Auth, TakesEitherHeaderAndNothingElse) {
  const Auth auth({"one", "two"});
  const auto with = [](HttpHeaders headers) {
    HttpRequest request;
    request.headers = std::move(headers);
    return request;
  };
  EXPECT_TRUE(auth.allows(with({{"Authorization", "Bearer one"}})));
  EXPECT_TRUE(auth.allows(with({{"authorization", "bearer  two "}})));
  EXPECT_TRUE(auth.allows(with({{"X-Api-Key", "two"}})));
  for (const char* wrong : {"", "on", "onee", "One", "one two"})
    EXPECT_FALSE(auth.allows(with({{"x-api-key", wrong}}))) << wrong;
  EXPECT_FALSE(auth.allows(with({{"Authorization", "one"}})));
  EXPECT_FALSE(auth.allows(with({})));
  EXPECT_TRUE(Auth({}).allows(with({})));
}

TEST(JsonWriter, WritesWhatAParserReads) {
  JsonWriter w;
  w.begin_object().member("a", 1).key("b").begin_array().value("x\"\n").value(true).null();
  w.begin_object().end_object().value(0.5).end_array().member("c", int64_t{-7}).end_object();
  EXPECT_EQ(w.text(), R"({"a":1,"b":["x\"\n",true,null,{},0.5],"c":-7})");
}

}  // namespace
}  // namespace peregrine::test
