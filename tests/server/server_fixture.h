// A server on the tiny model, in this process, on a free port.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "server/http_client.h"
#include "server/server.h"
#include "support/fixtures.h"

namespace peregrine::test {

inline std::shared_ptr<const Model> tiny_model() {
  static const std::shared_ptr<const Model> model = Model::load(model_path("tiny"), {.threads = 1});
  return model;
}

class RunningServer {
 public:
  explicit RunningServer(ServerOptions options = {}, EngineOptions engine_options = {},
                         DraftOptions draft = {}) {
    options.port = 0;
    options.model_name = "tiny";
    options.shutdown_seconds = 60;
    if (engine_options.context_tokens == 0) engine_options.context_tokens = 2048;
    if (engine_options.kv_bytes == 0) engine_options.kv_bytes = 64 << 20;
    engine = std::make_unique<Engine>(tiny_model(), engine_options);
    server = std::make_unique<Server>(options);
    server->serve(*engine, draft);
  }
  int port() const { return server->port(); }

  // Waits until `condition` holds of the engine's numbers.
  template <typename Condition>
  void wait_for(const Condition& condition) const {
    while (!condition(engine->stats())) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }

  std::unique_ptr<Engine> engine;  // outlives the server
  std::unique_ptr<Server> server;
};

// A body that makes the model talk for long, whatever it would say.
inline std::string long_request(int max_tokens, bool stream) {
  return R"({"prompt":"Once upon a time","temperature":0,"logit_bias":{"1":-100},"max_tokens":)" +
         std::to_string(max_tokens) + R"(,"stream":)" + (stream ? "true" : "false") + "}";
}

inline std::string ask(const std::string& text, const std::string& more = {}) {
  nlohmann::json body;
  body["messages"] = {{{"role", "user"}, {"content", text}}};
  body["temperature"] = 0;
  body["max_tokens"] = 60;
  body["thinking"] = {{"type", "disabled"}};
  if (!more.empty()) body.update(nlohmann::json::parse(more));
  return body.dump();
}

}  // namespace peregrine::test
