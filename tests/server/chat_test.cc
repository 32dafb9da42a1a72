// Chat completions over HTTP on the tiny model.
#include <map>
#include <regex>
#include <set>

#include "server/server_fixture.h"

namespace peregrine::test {
namespace {

using nlohmann::json;

constexpr const char* kTools = R"({"tools":[{"type":"function","function":{"name":"get_weather",
  "description":"Weather of a city","parameters":{"type":"object","properties":
  {"city":{"type":"string"}},"required":["city"]}}}]})";

class Chat : public ::testing::Test {
 protected:
  static RunningServer& server() {
    static RunningServer running;
    return running;
  }
  static Answer chat(const std::string& body) {
    return Client(server().port()).post("/v1/chat/completions", body);
  }
};

// What a stream adds up to, per choice, with its order checked on the way.
struct Streamed {
  std::string content, reasoning, finish;
  std::vector<json> calls;
};

std::map<int, Streamed> add_up(const Answer& answer) {
  std::map<int, Streamed> choices;
  const std::vector<std::string> events = answer.events();
  EXPECT_TRUE(answer.ended_cleanly);
  EXPECT_EQ(events.back(), "[DONE]");
  std::string id;
  std::set<int> begun;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const json chunk = json::parse(events[i]);  // refuses half characters
    if (id.empty()) id = chunk["id"];
    EXPECT_EQ(chunk["id"], id);
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    for (const json& choice : chunk["choices"]) {
      const int index = choice["index"];
      Streamed& s = choices[index];
      EXPECT_TRUE(s.finish.empty()) << "a chunk behind the final one";
      const json& delta = choice["delta"];
      if (begun.insert(index).second) {
        EXPECT_EQ(delta["role"], "assistant");
      }
      if (delta.contains("reasoning_content")) {
        EXPECT_TRUE(s.content.empty() && s.calls.empty()) << "reasoning comes first";
        s.reasoning += delta["reasoning_content"].get<std::string>();
      }
      if (delta.contains("content")) {
        EXPECT_TRUE(s.calls.empty()) << "calls come last";
        s.content += delta["content"].get<std::string>();
      }
      if (delta.contains("tool_calls")) {
        const json& call = delta["tool_calls"][0];
        if (call.contains("id")) {
          EXPECT_EQ(call["index"], s.calls.size());
          s.calls.push_back(call);
        } else {
          std::string& all =
              s.calls.at(call["index"])["function"]["arguments"].get_ref<std::string&>();
          all += call["function"]["arguments"].get<std::string>();
        }
      }
      if (!choice["finish_reason"].is_null()) s.finish = choice["finish_reason"];
    }
  }
  return choices;
}

TEST_F(Chat, AnswersAndCounts) {
  const Answer answer = chat(ask("What is the capital of France?"));
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json body = answer.json();
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["model"], "tiny");
  const json& choice = body["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "The capital of France is Paris.");
  EXPECT_FALSE(choice["message"].contains("reasoning_content"));
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_EQ(choice["finish_reason"], "stop");
  const json& usage = body["usage"];
  EXPECT_EQ(usage["total_tokens"],
            usage["prompt_tokens"].get<int>() + usage["completion_tokens"].get<int>());
  EXPECT_EQ(
      usage["prompt_cache_hit_tokens"].get<int>() + usage["prompt_cache_miss_tokens"].get<int>(),
      usage["prompt_tokens"]);
}

TEST_F(Chat, StreamAddsUpToTheWholeAnswer) {
  for (const char* more : {R"({})", R"({"thinking":{"type":"enabled"},"max_tokens":200})"}) {
    json streaming = json::parse(more);
    streaming["stream"] = true;
    const json whole = chat(ask("What is 12 + 7?", more)).json()["choices"][0];
    auto choices = add_up(chat(ask("What is 12 + 7?", streaming.dump())));
    ASSERT_EQ(choices.size(), 1u);
    EXPECT_EQ(choices[0].content, whole["message"]["content"]);
    EXPECT_EQ(choices[0].reasoning, whole["message"].value("reasoning_content", ""));
    EXPECT_EQ(choices[0].finish, whole["finish_reason"]);
  }
}

TEST_F(Chat, UsageChunkComesLastAndOnlyWhenAskedFor) {
  const Answer with =
      chat(ask("Thanks", R"({"stream":true,"stream_options":{"include_usage":true}})"));
  const auto events = with.events();
  ASSERT_GE(events.size(), 3u);
  const json last = json::parse(events[events.size() - 2]);
  EXPECT_TRUE(last["choices"].empty());
  EXPECT_GT(last["usage"]["completion_tokens"], 0);
  EXPECT_TRUE(json::parse(events[0])["usage"].is_null());
  const Answer without = chat(ask("Thanks", R"({"stream":true})"));
  EXPECT_EQ(without.body.find("\"usage\""), without.body.npos);
}

TEST_F(Chat, ThinkingIsSeparateAndCounted) {
  const json body =
      chat(ask("What is 3 + 4?", R"({"thinking":{"type":"enabled"},"max_tokens":300})")).json();
  const json& choice = body["choices"][0];
  EXPECT_FALSE(choice["message"]["reasoning_content"].get<std::string>().empty());
  const int reasoning = body["usage"]["completion_tokens_details"]["reasoning_tokens"];
  EXPECT_GT(reasoning, 0);
  EXPECT_LE(reasoning, body["usage"]["completion_tokens"]);
  EXPECT_EQ(choice["message"]["content"].get<std::string>().find("think>"), std::string::npos);
}

TEST_F(Chat, NamedToolIsCalledWhateverTheQuestion) {
  json more = json::parse(kTools);
  more["tool_choice"] = {{"type", "function"}, {"function", {{"name", "get_weather"}}}};
  for (const bool thinking : {false, true}) {
    more["thinking"] = {{"type", thinking ? "enabled" : "disabled"}};
    const json choice = chat(ask("Thanks", more.dump())).json()["choices"][0];
    ASSERT_TRUE(choice["message"].contains("tool_calls")) << choice;
    const json& call = choice["message"]["tool_calls"][0];
    EXPECT_EQ(call["function"]["name"], "get_weather");
    EXPECT_TRUE(call["id"].get<std::string>().starts_with("call_"));
    if (choice["finish_reason"] == "tool_calls") {
      EXPECT_TRUE(json::parse(call["function"]["arguments"].get<std::string>()).is_object());
    }
    more["stream"] = true;
    auto streamed = add_up(chat(ask("Thanks", more.dump())));
    more.erase("stream");
    ASSERT_FALSE(streamed[0].calls.empty());
    EXPECT_EQ(streamed[0].calls[0]["function"], call["function"]);
    EXPECT_EQ(streamed[0].finish, choice["finish_reason"]);
  }
}

TEST_F(Chat, StopStringIsCutOutAndEndsTheRequest) {
  for (const bool stream : {false, true}) {
    json more = {{"stop", {"nothing like it", "of Fr"}}, {"stream", stream}};
    const Answer answer = chat(ask("What is the capital of France?", more.dump()));
    if (stream) {
      auto choices = add_up(answer);
      EXPECT_EQ(choices[0].content, "The capital ");
      EXPECT_EQ(choices[0].finish, "stop");
    } else {
      EXPECT_EQ(answer.json()["choices"][0]["message"]["content"], "The capital ");
      EXPECT_LT(answer.json()["usage"]["completion_tokens"], 9);
    }
  }
}

TEST_F(Chat, MillionCharacterStopStringIsCheap) {
  const json more = {{"stop", std::string(1000000, 'a')}};
  const Answer answer = chat(ask("What is the capital of France?", more.dump()));
  ASSERT_EQ(answer.status, 200);
  EXPECT_EQ(answer.json()["choices"][0]["message"]["content"], "The capital of France is Paris.");
}

TEST_F(Chat, SeedsRepeatAndChoicesDiffer) {
  const std::string body =
      ask("Tell me a story.", R"({"temperature":1.0,"seed":5,"n":3,"max_tokens":24})");
  const json first = chat(body).json()["choices"], second = chat(body).json()["choices"];
  ASSERT_EQ(first.size(), 3u);
  std::set<std::string> texts;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(first[i]["index"], i);
    EXPECT_EQ(first[i]["message"], second[i]["message"]);
    texts.insert(first[i]["message"]["content"].get<std::string>());
  }
  EXPECT_GT(texts.size(), 1u);
}

TEST_F(Chat, LogprobsBelongToTheVisibleText) {
  const json choice =
      chat(ask("What is the capital of France?", R"({"logprobs":true,"top_logprobs":2})"))
          .json()["choices"][0];
  std::string text;
  for (const json& token : choice["logprobs"]["content"]) {
    text += token["token"].get<std::string>();
    EXPECT_LE(token["logprob"], 0.0);
    ASSERT_EQ(token["top_logprobs"].size(), 2u);
    EXPECT_EQ(token["top_logprobs"][0]["token"], token["token"]) << "greedy takes the likeliest";
  }
  EXPECT_EQ(text, choice["message"]["content"]);
}

TEST_F(Chat, PrefixIsContinued) {
  json body = json::parse(ask("What is the capital of France?"));
  body["messages"].push_back(
      {{"role", "assistant"}, {"content", "The capital of"}, {"prefix", true}});
  const json choice = chat(body.dump()).json()["choices"][0];
  EXPECT_EQ(choice["message"]["content"], " France is Paris.");
}

TEST_F(Chat, WrongFieldsAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"temperature":"hot"})", "temperature"},
      {R"({"temperature":3})", "temperature"},
      {R"({"top_p":-1})", "top_p"},
      {R"({"n":0})", "n"},
      {R"({"max_tokens":0})", "max_tokens"},
      {R"({"max_tokens":1.5})", "max_tokens"},
      {R"({"stop":[1]})", "stop"},
      {R"({"stream":"yes"})", "stream"},
      {R"({"top_logprobs":21,"logprobs":true})", "top_logprobs"},
      {R"({"logit_bias":{"x":1}})", "logit_bias"},
      {R"({"logit_bias":{"1":200}})", "logit_bias.1"},
      {R"({"reasoning_effort":"huge"})", "reasoning_effort"},
      {R"({"messages":[]})", "messages"},
      {R"({"messages":[{"role":"robot","content":"x"}]})", "messages[0].role"},
      {R"({"tools":7})", "tools"},
      {R"({"seed":"x"})", "seed"},
      {R"({"stream_options":{"include_usage":1}})", "stream_options.include_usage"},
  };
  for (const auto& [more, field] : cases) {
    const Answer answer = chat(ask("hi", more));
    EXPECT_EQ(answer.status, 400) << more;
    const json error = answer.json()["error"];
    EXPECT_EQ(error["param"], field) << answer.body;
    EXPECT_EQ(error["type"], "invalid_request_error");
  }
}

TEST_F(Chat, UnknownFieldsAreIgnoredWithAWarning) {
  const Answer answer = chat(ask("Thanks", R"({"zeta":1,"user":"u","alpha":2})"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.header("X-Peregrine-Warning"), "ignored unknown fields: alpha, zeta");
}

TEST_F(Chat, TooLongAPromptSaysBothNumbers) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "word ";
  const Answer answer = chat(ask(text));
  EXPECT_EQ(answer.status, 400);
  const json error = answer.json()["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_TRUE(std::regex_search(error["message"].get<std::string>(),
                                std::regex("[0-9]+ tokens > 2047 tokens")));
}

TEST_F(Chat, NextTurnRepeatsWhatWasSampledThoughTheClientChangedIt) {
  json body = json::parse(ask("Tell me a story about a brave fox named Ruby.", kTools));
  body["thinking"] = {{"type", "enabled"}};
  body["max_tokens"] = 400;
  const json first = chat(body.dump()).json();
  const json& message = first["choices"][0]["message"];
  ASSERT_EQ(first["choices"][0]["finish_reason"], "stop") << first;
  // Reasoning dropped, white space added.
  body["messages"].push_back(
      {{"role", "assistant"}, {"content", message["content"].get<std::string>() + " \n"}});
  body["messages"].push_back({{"role", "user"}, {"content", "Thanks"}});
  const json usage = chat(body.dump()).json()["usage"];
  const int before = first["usage"]["total_tokens"];
  // The reasoning that was sampled is there again, although the client did not send it.
  EXPECT_GE(usage["prompt_tokens"].get<int>(), before);
  EXPECT_GT(usage["prompt_cache_hit_tokens"], 0);
  // An answer with other words is not the one that was sampled.
  body["messages"][1]["content"] = "Something else.";
  EXPECT_LT(chat(body.dump()).json()["usage"]["prompt_tokens"].get<int>(), before);
}

}  // namespace
}  // namespace peregrine::test
