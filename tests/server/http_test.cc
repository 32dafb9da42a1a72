// The server as a peer on the network: limits, errors, disconnects, shutdown.
#include <future>

#include "server/server_fixture.h"

namespace peregrine::test {
namespace {

using nlohmann::json;

class Http : public ::testing::Test {
 protected:
  static RunningServer& server() {
    static RunningServer running;
    return running;
  }
  static int port() { return server().port(); }
};

TEST_F(Http, EveryPathHasItsMethodsAndErrors) {
  Client client(port());
  for (const char* path : {"/livez", "/readyz", "/health", "/v1/health", "/version", "/metrics",
                           "/v1/models", "/models", "/v1/models/tiny", "/v1/models?x=1"})
    EXPECT_EQ(client.get(path).status, 200) << path;
  EXPECT_EQ(client.get("/v1/models/other").json()["error"]["code"], "model_not_found");
  EXPECT_EQ(client.get("/v1/nothing").status, 404);
  EXPECT_EQ(client.get("/v1/chat/completions").status, 405);
  EXPECT_EQ(client.post("/v1/models", "{}").status, 405);
  EXPECT_EQ(client.post("/v1/chat/completions", "{}", "").json()["error"]["param"], "messages");
  const Answer anthropic = client.get("/v1/models", "anthropic-version: 2023-06-01\r\n");
  EXPECT_EQ(anthropic.json()["data"][0]["type"], "model");
  EXPECT_NE(client.get("/metrics").body.find("peregrine_output_tokens_total"), std::string::npos);
}

TEST_F(Http, BadBodiesGetASentence) {
  Client client(port());
  std::string deep(100000, '[');
  for (const std::string& body :
       {std::string(""), std::string("{"), std::string("[]"), std::string("nul"),
        std::string("{\"messages\":[}"), deep, "{\"messages\":" + deep}) {
    const Answer answer = client.post("/v1/chat/completions", body);
    EXPECT_EQ(answer.status, 400);
    EXPECT_EQ(answer.json()["error"]["code"], "invalid_json") << body.substr(0, 40);
  }
  // Ill-formed UTF-8 becomes U+FFFD, in the prompt and in what is said back.
  EXPECT_EQ(client
                .post("/v1/chat/completions",
                      "{\"messages\":[{\"role\":\"\xff\xfe\",\"content\":\"x\"}]}")
                .status,
            400);
  EXPECT_EQ(client.post("/tokenize", "{\"prompt\":\"\xc3(\"}").status, 200);
  client.send(
      "POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Type: image/png\r\n"
      "Content-Length: 2\r\n\r\n{}");
  EXPECT_EQ(client.receive().status, 415);
}

TEST_F(Http, TokenizeAndDetokenizeAreInverse) {
  Client client(port());
  const json tokens =
      client.post("/tokenize", R"({"prompt":"Zoë said 42!","add_special_tokens":false})").json();
  EXPECT_EQ(tokens["count"], tokens["tokens"].size());
  const json back = client.post("/detokenize", json{{"tokens", tokens["tokens"]}}.dump()).json();
  EXPECT_EQ(back["prompt"], "Zoë said 42!");
  EXPECT_EQ(client.post("/detokenize", R"({"tokens":[-1]})").status, 400);
  EXPECT_EQ(client.post("/detokenize", R"({"tokens":[1e9]})").status, 400);
  EXPECT_EQ(client.post("/tokenize", R"({"prompt":7})").json()["error"]["param"], "prompt");
  const json chat = client.post("/tokenize", ask("hi")).json();
  EXPECT_GT(chat["count"], 3);
}

TEST_F(Http, CompletionsTakeEveryKindOfPrompt) {
  Client client(port());
  const json more = {{"max_tokens", 6}, {"temperature", 0}};
  const auto complete = [&](json body) {
    body.update(more);
    return client.post("/v1/completions", body.dump());
  };
  const json one = complete({{"prompt", "Once upon"}}).json();
  EXPECT_EQ(one["object"], "text_completion");
  const std::string text = one["choices"][0]["text"];
  EXPECT_EQ(one["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(one["usage"]["completion_tokens"], 6);

  const json two = complete({{"prompt", {"Once upon", "The fox"}}, {"n", 2}}).json();
  ASSERT_EQ(two["choices"].size(), 4u);
  EXPECT_EQ(two["choices"][0]["text"], text);
  EXPECT_EQ(two["choices"][1]["text"], text);
  EXPECT_NE(two["choices"][2]["text"], text);

  const json ids = client.post("/tokenize", R"({"prompt":"Once upon"})").json()["tokens"];
  EXPECT_EQ(complete({{"prompt", ids}}).json()["choices"][0]["text"], text);
  const json echo = complete({{"prompt", "Once upon"}, {"echo", true}, {"logprobs", 1}}).json();
  EXPECT_EQ(echo["choices"][0]["text"], "Once upon" + text);
  EXPECT_EQ(echo["choices"][0]["logprobs"]["tokens"].size(), 6u);
  EXPECT_EQ(echo["choices"][0]["logprobs"]["text_offset"][0], 9);

  const Answer stream = complete({{"prompt", "Once upon"}, {"stream", true}});
  std::string streamed;
  const auto events = stream.events();
  for (size_t i = 0; i + 1 < events.size(); ++i)
    streamed += json::parse(events[i])["choices"][0]["text"].get<std::string>();
  EXPECT_EQ(streamed, text);
  EXPECT_EQ(events.back(), "[DONE]");
  for (const json& bad : {json(7), json::array(), json::array({1, "x"}), json::array({-1}), json()})
    EXPECT_EQ(complete({{"prompt", bad}}).status, 400) << bad;
}

TEST_F(Http, RequestsOnOneConnectionAreAnsweredInOrder) {
  Client client(port());
  std::string all;
  for (int i = 0; i < 20; ++i)
    all += i % 2 ? "GET /livez HTTP/1.1\r\nHost: t\r\n\r\n" : "GET /no HTTP/1.1\r\nHost: t\r\n\r\n";
  client.send(all);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(client.receive().status, i % 2 ? 200 : 404);
  client.send("HEAD /livez HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
  ASSERT_TRUE(client.read_until("\r\n\r\n"));
}

TEST_F(Http, SmugglingShapesEndTheConnection) {
  for (const char* bytes :
       {"POST /livez HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
        "0\r\n\r\nGET /livez HTTP/1.1\r\nHost: t\r\n\r\n",
        "POST /livez HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
        "GET /livez HTTP/1.1\nHost: t\n\nGET /livez HTTP/1.1\r\nHost: t\r\n\r\n"}) {
    Client client(port());
    client.send(bytes);
    EXPECT_EQ(client.receive().status, 400);
    EXPECT_TRUE(client.closed()) << "nothing behind it may be answered";
  }
}

TEST_F(Http, ExpectationIsMet) {
  Client client(port());
  client.send(
      "POST /tokenize HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\n"
      "Content-Length: 15\r\n\r\n");
  ASSERT_TRUE(client.read_until("HTTP/1.1 100 Continue\r\n\r\n"));
  client.send("{\"prompt\":\"abc\"}");
  EXPECT_EQ(client.receive().status, 400);  // one byte more than announced: the JSON is cut
}

TEST_F(Http, DisconnectCancelsAtEveryStage) {
  const int64_t before = server().engine->stats().cancelled;
  {
    Client streaming(port());
    const std::string body = long_request(2000, true);
    streaming.send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: " +
                   std::to_string(body.size()) + "\r\n\r\n" + body);
    ASSERT_TRUE(streaming.read_until("data: "));
  }
  {
    Client waiting(port());
    const std::string body = long_request(2000, false);
    waiting.send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: " +
                 std::to_string(body.size()) + "\r\n\r\n" + body);
    server().wait_for([](const EngineStats& s) { return s.running > 0; });
  }
  server().wait_for([&](const EngineStats& s) { return s.cancelled == before + 2; });
  server().wait_for([](const EngineStats& s) { return s.running == 0; });
  EXPECT_EQ(server().engine->check_integrity(), "");
}

TEST(HttpLimits, AreAnsweredWithTheirStatus) {
  ServerOptions options;
  options.limits.body_bytes = 1000;
  options.limits.header_bytes = 2000;
  options.limits.header_seconds = 0.2;
  options.limits.body_seconds = 0.2;
  options.limits.idle_seconds = 0.2;
  options.api_keys = {"secret"};
  RunningServer server(options);
  {
    Client client(server.port());
    client.send("POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 100000000\r\n\r\n");
    EXPECT_EQ(client.receive().status, 413);
    const std::string block(1 << 20, 'x');
    for (int i = 0; i < 100 && client.send(block); ++i) {
    }
  }
  {
    Client client(server.port());
    EXPECT_EQ(client.get("/livez", "X: " + std::string(5000, 'x') + "\r\n").status, 431);
  }
  {
    Client client(server.port());
    client.send("GET /livez HT");
    EXPECT_EQ(client.receive().status, 408);
  }
  {
    Client client(server.port());
    client.send("POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\n{");
    EXPECT_EQ(client.receive().status, 408);
  }
  {
    Client client(server.port());
    EXPECT_TRUE(client.closed()) << "an idle connection ends in silence";
  }
  Client client(server.port());
  EXPECT_EQ(client.get("/livez").status, 200);
  EXPECT_EQ(client.get("/v1/models").status, 401);
  EXPECT_EQ(client.get("/v1/models", "Authorization: Bearer secret\r\n").status, 200);
}

TEST(HttpLimits, FullQueueSaysRetry) {
  RunningServer server({}, {.max_running = 1, .max_waiting = 1, .context_tokens = 4096});
  std::vector<std::unique_ptr<Client>> clients;
  const std::string body = long_request(4000, true);
  const std::string request =
      "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: " + std::to_string(body.size()) +
      "\r\n\r\n" + body;
  const auto ask_for_long = [&] {
    clients.push_back(std::make_unique<Client>(server.port()));
    clients.back()->send(request);
  };
  ask_for_long();
  server.wait_for([](const EngineStats& s) { return s.running == 1; });
  ask_for_long();
  server.wait_for([](const EngineStats& s) { return s.waiting == 1; });
  const Answer answer = Client(server.port()).post("/v1/completions", body);
  EXPECT_EQ(answer.status, 429);
  EXPECT_FALSE(answer.header("Retry-After").empty());
  EXPECT_EQ(answer.json()["error"]["type"], "rate_limit_error");
}

TEST(HttpLimits, SlowReaderIsCutOffAndCancelled) {
  ServerOptions options;
  options.limits.unread_bytes = 20000;
  options.limits.write_seconds = 1;
  RunningServer server(options, {.context_tokens = 8192});
  Client client(server.port(), 2048);
  const std::string body = R"({"prompt":"Once","n":16,"logprobs":20,"logit_bias":{"1":-100},)"
                           R"("max_tokens":8000,"stream":true})";
  client.send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  ASSERT_TRUE(client.read_until("data: "));
  server.wait_for([](const EngineStats& s) { return s.cancelled == 16; });
}

TEST(HttpLimits, DeadlineEndsARequest) {
  ServerOptions options;
  options.deadline_seconds = 0.3;
  RunningServer server(options, {.context_tokens = 8192});
  EXPECT_EQ(Client(server.port()).post("/v1/completions", long_request(8000, false)).status, 504);
  const Answer stream = Client(server.port()).post("/v1/completions", long_request(8000, true));
  EXPECT_EQ(json::parse(stream.events().back())["error"]["code"], "deadline_exceeded");
}

TEST(HttpCors, OneOriginMayAskWhenItIsNamed) {
  ServerOptions options;
  options.api_keys = {"secret"};
  options.cors_origin = "https://page.example";
  RunningServer server(options);
  Client client(server.port());
  client.send(
      "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: t\r\nOrigin: https://page.example\r\n"
      "Access-Control-Request-Headers: authorization,content-type\r\n\r\n");
  const Answer preflight = client.receive();
  EXPECT_EQ(preflight.status, 200);
  EXPECT_EQ(preflight.header("Access-Control-Allow-Headers"), "authorization,content-type");
  const std::string key = "Authorization: Bearer secret\r\n";
  const std::string body = R"({"prompt":"Once","max_tokens":2,"stream":true})";
  for (const Answer& answer : {preflight, client.get("/v1/models"), client.get("/v1/models", key),
                               client.post("/v1/completions", body, key)})
    EXPECT_EQ(answer.header("Access-Control-Allow-Origin"), "https://page.example") << answer.head;
}

TEST_F(Http, NoOtherOriginIsServedByDefault) {
  Client client(port());
  EXPECT_EQ(client.get("/livez").header("Access-Control-Allow-Origin"), "");
  client.send("OPTIONS /v1/models HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(client.receive().status, 405);
}

TEST(HttpShutdown, RunningRequestsEndNewOnesAreRefused) {
  RunningServer server;
  Client streaming(server.port()), probing(server.port());
  const std::string body = long_request(300, true);
  streaming.send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: " +
                 std::to_string(body.size()) + "\r\n\r\n" + body);
  ASSERT_TRUE(streaming.read_until("data: "));
  EXPECT_EQ(probing.get("/readyz").status, 200);
  const auto done = std::async(std::launch::async, [&] { server.server->shut_down(); });
  Answer ready;
  do {
    ready = probing.get("/readyz");
  } while (ready.status == 200);
  // 503 while the request runs; without a connection once everything has ended.
  EXPECT_TRUE(ready.status == 503 || ready.status == 0) << ready.status;
  const Answer answer = streaming.receive();
  EXPECT_EQ(answer.events().back(), "[DONE]");
  EXPECT_TRUE(answer.ended_cleanly);
  done.wait();
}

TEST(HttpShutdown, AServerThatIsStillLoadingSaysSo) {
  ServerOptions options;
  options.port = 0;
  Server server(options);
  Client client(server.port());
  EXPECT_EQ(client.get("/livez").status, 200);
  EXPECT_EQ(client.get("/readyz").status, 503);
  const Answer answer = client.post("/v1/chat/completions", ask("hi"));
  EXPECT_EQ(answer.status, 503);
  EXPECT_FALSE(answer.header("Retry-After").empty());
}

}  // namespace
}  // namespace peregrine::test
