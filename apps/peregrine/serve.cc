// peregrine serve: the HTTP server.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <filesystem>

#include "base/fail.h"
#include "commands.h"
#include "model_options.h"
#include "output.h"
#include "sampling_options.h"
#include "server/auth.h"
#include "server/server.h"

namespace peregrine {
namespace {

struct ServeOptions {
  ModelOptions model;
  DraftFlags draft;
  EngineOptions engine;
  ServerOptions server;
  std::vector<std::string> api_keys;
  std::string prefix_cache = "replay";
};

// Signals that end the server are waited for, not handled: blocked before any thread starts.
sigset_t block_end_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

std::string name_of_model(const std::string& path) {
  const auto folder = std::filesystem::weakly_canonical(path);
  return folder.filename().empty() ? "model" : folder.filename().string();
}

EngineOptions engine_options(const ServeOptions& o) {
  EngineOptions engine = o.engine;
  if (o.model.context_tokens < 0)
    fail(ErrorKind::kInvalidArgument, "--context {}: expected at least 1 token",
         o.model.context_tokens);
  engine.context_tokens = o.model.context_tokens;
  engine.prefill = o.model.prefill == "exact" ? PrefillMode::kExact : PrefillMode::kReplay;
  engine.prefix_cache = o.prefix_cache == "off"     ? PrefixCacheMode::kOff
                        : o.prefix_cache == "exact" ? PrefixCacheMode::kExact
                                                    : PrefixCacheMode::kReplay;
  return engine;
}

void run(ServeOptions& o) {
  const sigset_t signals = block_end_signals();
  spdlog::set_default_logger(spdlog::stderr_color_mt("serve"));
  o.server.api_keys = read_api_keys(o.api_keys);
  if (o.server.model_name.empty()) o.server.model_name = name_of_model(o.model.model);
  // The address is taken first, so that a port in use is known before a long load and probes see
  // that the model is on its way. The server ends before the engine that it uses.
  std::unique_ptr<Engine> engine;
  Server server(o.server);
  const auto model = load_model(o.model);
  engine = std::make_unique<Engine>(model, engine_options(o));
  server.serve(*engine, draft_options(o.draft, *model));
  write_output(fmt::format("Serving {} at {}://{}:{}\n", o.server.model_name,
                           server.tls() ? "https" : "http", o.server.host, server.port()));
  flush_output();

  int signal = 0;
  sigwait(&signals, &signal);
  server.shut_down();
}

}  // namespace

void add_serve(CLI::App& app) {
  auto o = std::make_shared<ServeOptions>();
  CLI::App* command = app.add_subcommand("serve", "Answer OpenAI- and Anthropic-style requests");
  o->model.prefill = "replay";
  command->add_option("--host", o->server.host, "Address to listen on (default: 127.0.0.1)");
  command->add_option("--port", o->server.port, "Port; 0 takes any free one (default: 8000)")
      ->check(CLI::Range(0, 65535));
  command->add_option("--api-key", o->api_keys,
                      "A key that requests must show, or @file with one a line; may be repeated");
  add_model_options(*command, o->model);
  add_draft_options(*command, o->draft);
  command->callback([o] { run(*o); });
}

}  // namespace peregrine
