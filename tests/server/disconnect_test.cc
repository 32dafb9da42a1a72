// Clients that go away: at every stage of a request, several at once, politely or with a reset.
#include <fmt/format.h>
#include <rapidcheck.h>

#include "server/server_fixture.h"

namespace peregrine::test {
namespace {

using nlohmann::json;

enum class Stage { kHeaders, kBody, kQueueOrPrefill, kStreaming, kSlowReading };

struct Visit {
  Stage stage;
  int cut;     // bytes sent, or events read, before leaving
  bool reset;  // the connection is reset, not closed
  bool stream;
  bool long_prompt;
};

void showValue(const Visit& v, std::ostream& out) {
  out << "stage " << static_cast<int>(v.stage) << " cut " << v.cut << (v.reset ? " reset" : "")
      << (v.stream ? " stream" : "") << (v.long_prompt ? " long" : "");
}

rc::Gen<Visit> any_visit() {
  return rc::gen::map(
      rc::gen::tuple(rc::gen::inRange(0, 5), rc::gen::inRange(0, 50), rc::gen::arbitrary<bool>(),
                     rc::gen::arbitrary<bool>(), rc::gen::arbitrary<bool>()),
      [](const auto& t) {
        return Visit{static_cast<Stage>(std::get<0>(t)), std::get<1>(t), std::get<2>(t),
                     std::get<3>(t), std::get<4>(t)};
      });
}

std::string http_post(const std::string& body) {
  return "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

json request_body(const Visit& v) {
  std::string prompt = "Once upon a time";
  if (v.long_prompt)
    for (int i = 0; i < 40; ++i) prompt += " a fox met a dog and";
  return {{"prompt", prompt},
          {"max_tokens", 600},
          {"temperature", 0},
          {"ignore_eos", true},
          {"stream", v.stream || v.stage >= Stage::kStreaming}};
}

// Up to where this client stays; the connection is left open for the caller to end.
void go_on_until(const Visit& v, Client& client) {
  const std::string request = http_post(request_body(v).dump());
  const size_t head = request.find("\r\n\r\n") + 4;
  const auto cut = static_cast<size_t>(v.cut);
  switch (v.stage) {
    case Stage::kHeaders:
      client.send(request.substr(0, cut % head));
      return;
    case Stage::kBody:
      client.send(request.substr(0, head + cut % (request.size() - head)));
      return;
    case Stage::kQueueOrPrefill:  // whatever it is at by then
      client.send(request);
      std::this_thread::sleep_for(std::chrono::milliseconds(v.cut % 20));
      return;
    case Stage::kStreaming:
      client.send(request);
      for (int i = 0; i <= v.cut % 8; ++i)
        if (!client.read_past("data: ")) return;
      return;
    case Stage::kSlowReading:
      client.send(request);
      client.read_some();
      std::this_thread::sleep_for(std::chrono::milliseconds(v.cut));
      return;
  }
}

class Disconnect : public ::testing::Test {
 protected:
  // Two run at a time, so that others wait.
  static RunningServer& server() {
    static RunningServer running({}, {.max_running = 2});
    return running;
  }
  // Nothing may be left of them but pages that the prefix cache keeps.
  static std::string settled() {
    server().wait_for(
        [](const EngineStats& s) { return s.running == 0 && s.waiting == 0 && s.prefilling == 0; });
    if (const std::string broken = server().engine->check_integrity(); !broken.empty())
      return broken;
    const EngineStats s = server().engine->stats();
    if (s.pages_used != s.pages_cached)
      return fmt::format("{} pages in use, {} of them by the cache", s.pages_used, s.pages_cached);
    return {};
  }
};

TEST_F(Disconnect, AtAnyStageLeavesNothingBehind) {
  const bool ok = rc::check([] {
    const auto visits =
        *rc::gen::resize(4, rc::gen::nonEmpty(rc::gen::container<std::vector<Visit>>(any_visit())));
    std::vector<std::thread> threads;
    for (const Visit& visit : visits)
      threads.emplace_back([&visit] {
        Client client(server().port(), visit.stage == Stage::kSlowReading ? 2048 : 0);
        go_on_until(visit, client);
        visit.reset ? client.reset() : client.disconnect();
      });
    for (std::thread& thread : threads) thread.join();
    const std::string problem = settled();
    RC_ASSERT(problem == "");
    Client after(server().port());
    RC_ASSERT(after.get("/readyz").status == 200);
  });
  EXPECT_TRUE(ok);
}

TEST_F(Disconnect, KeepsThePrefix) {
  Visit visit{Stage::kStreaming, 3, false, true, true};
  json body = request_body(visit);
  body["prompt"] = "Ruby said: " + body["prompt"].get<std::string>();
  Client gone(server().port());
  gone.send(http_post(body.dump()));
  ASSERT_TRUE(gone.read_past("data: "));
  gone.disconnect();
  ASSERT_EQ(settled(), "");
  body["stream"] = false;
  body["max_tokens"] = 1;
  const json usage = Client(server().port()).post("/v1/completions", body.dump()).json()["usage"];
  const int prompt = usage["prompt_tokens"];
  EXPECT_GT(prompt, 150);
  EXPECT_GT(usage["prompt_tokens_details"]["cached_tokens"], prompt / 2);
}

}  // namespace
}  // namespace peregrine::test
