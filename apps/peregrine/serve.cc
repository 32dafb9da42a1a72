// peregrine serve: the HTTP server.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <filesystem>
#include <limits>

#include "base/fail.h"
#include "commands.h"
#include "model_options.h"
#include "output.h"
#include "rank_options.h"
#include "sampling_options.h"
#include "server/auth.h"
#include "server/balance_metrics.h"
#include "server/server.h"
#include "sharing_options.h"
#include "toml_config.h"

namespace peregrine {
namespace {

struct ServeOptions {
  ModelOptions model;
  DraftFlags draft;
  EngineOptions engine;
  ServerOptions server;
  SharingFlags sharing;
  RankFlags ranks;
  std::vector<std::string> api_keys;
  std::string prefix_cache = "replay";
  std::string config;  // file
};

// Signals that end the server are waited for, not handled: blocked before any thread starts. Of
// these mpirun passes on SIGUSR1 alone; after a SIGTERM it kills its ranks a second later.
sigset_t block_end_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

// Every connection is a descriptor; the usual soft limit of 1024 is for programs that use select().
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

std::string name_of_model(const std::string& path) {
  const auto folder = std::filesystem::weakly_canonical(path);
  return folder.filename().empty() ? "model" : folder.filename().string();
}

EngineOptions engine_options(const ServeOptions& o, const Ranks& ranks) {
  EngineOptions engine = o.engine;
  if (ranks.several()) {
    // Ranks of one host write no file of another.
    const std::string mine = fmt::format("rank{}", ranks.rank());
    if (!engine.prefix_spill_dir.empty()) engine.prefix_spill_dir += "/" + mine;
    if (!engine.trace_file.empty()) engine.trace_file += "." + mine;
  }
  if (o.model.context_tokens < 0)
    fail(ErrorKind::kInvalidArgument, "--context {}: expected at least 1 token",
         o.model.context_tokens);
  engine.max_step_tokens = o.model.chunk_tokens;
  engine.context_tokens = o.model.context_tokens;
  engine.prefill = o.model.prefill == "exact" ? PrefillMode::kExact : PrefillMode::kReplay;
  engine.prefix_cache = o.prefix_cache == "off"     ? PrefixCacheMode::kOff
                        : o.prefix_cache == "exact" ? PrefixCacheMode::kExact
                                                    : PrefixCacheMode::kReplay;
  return engine;
}

// A rank beside the one that listens: answers what that one gives it until it ends. Signals are
// blocked, so that it ends in order when all ranks are sent one.
void work(const ServeOptions& o, Ranks& ranks) {
  const auto model = ranks.load(o.model);
  EngineOptions options = engine_options(o, ranks);
  options.max_waiting = std::numeric_limits<int>::max();  // rank 0 refuses when the queue is full
  ranks.wait_for_all();
  Engine engine(model, options, ranks.step_group());
  ranks.worker()->serve(engine);
}

void run(ServeOptions& o) {
  const sigset_t signals = block_end_signals();
  raise_descriptor_limit();
  spdlog::set_default_logger(spdlog::stderr_color_mt("serve"));
  o.ranks.balance.on_switch = [](const BalanceStats& stats) {
    spdlog::info("{}", balance_line(stats));
  };
  Ranks ranks(o.ranks, /*most_dp=*/0, /*dispatch=*/true);
  if (ranks.rank() > 0) return work(o, ranks);
  o.server.api_keys = read_api_keys(o.api_keys);
  if (o.server.model_name.empty()) o.server.model_name = name_of_model(o.model.model);
  // The address is taken first, so that a port in use is known before a long load and probes see
  // that the model is on its way. The server ends before the engine that it uses, and that before
  // sharing, which it gives its last states to.
  std::unique_ptr<SharingSetup> sharing;
  std::unique_ptr<Engine> engine;
  Server server(o.server);
  const auto model = ranks.load(o.model);
  ranks.wait_for_all();
  engine = std::make_unique<Engine>(model, engine_options(o, ranks), ranks.step_group());
  if (!o.sharing.directory.empty()) sharing = std::make_unique<SharingSetup>(o.sharing, *engine);
  std::function<std::string()> balance;
  if (RankExperts* experts = ranks.exchange())
    balance = [experts] { return balance_text(experts->balance_stats()); };
  server.serve(*engine, draft_options(o.draft, *model), sharing ? sharing->sharing() : nullptr,
               balance);
  write_output(fmt::format("Serving {} at {}://{}:{}\n", o.server.model_name,
                           server.tls() ? "https" : "http", o.server.host, server.port()));
  flush_output();

  int signal = 0;
  sigwait(&signals, &signal);
  ranks.asked_to_end();
  server.shut_down();
}

void add_http_options(CLI::App& command, ServeOptions& o) {
  ServerOptions& s = o.server;
  command.add_option("--host", s.host, "Address to listen on (default: 127.0.0.1)");
  command.add_option("--port", s.port, "Port; 0 takes any free one (default: 8000)")
      ->check(CLI::Range(0, 65535));
  command.add_option("--api-key", o.api_keys,
                     "A key that requests must show, or @file with one a line; may be repeated");
  command.add_option("--tls-cert", s.tls_certificate, "PEM file with the certificate chain");
  command.add_option("--tls-key", s.tls_key, "PEM file with its key");
  command.add_option("--cors-origin", s.cors_origin,
                     "Pages of this origin may ask from a browser; * for all (default: none)");
  command.add_option("--model-name", s.model_name,
                     "Name shown to clients (default: the checkpoint's folder)");
  command.add_flag("--strict-model", s.strict_model, "Refuse requests that name another model");
  command.add_option("--max-connections", s.limits.connections, "Open connections (16384)")
      ->check(CLI::Range(1, 1 << 20));
  command.add_option("--max-body-bytes", s.limits.body_bytes, "Longest request body (64 MiB)");
  command.add_option("--max-header-bytes", s.limits.header_bytes, "Longest headers (64 KiB)")
      ->check(CLI::Range(256, 16 << 20));
  command.add_option("--max-tokens", s.max_tokens, "Longest answer (default: the context)")
      ->check(CLI::NonNegativeNumber);
  command
      .add_option("--deadline-seconds", s.deadline_seconds,
                  "End requests that take longer (default: none)")
      ->check(CLI::NonNegativeNumber);
  command
      .add_option("--shutdown-seconds", s.shutdown_seconds,
                  "Time that running requests get to end after SIGTERM (default: 30)")
      ->check(CLI::NonNegativeNumber);
  command.add_option("--conversation-header", s.conversation_header,
                     "Header that names a request's conversation (default: X-Session-ID)");
  command.add_flag("--strict-conversations", s.strict_conversations,
                   "Refuse requests with earlier answers that name no conversation");
  command.add_flag("--log-prompts", s.log_prompts, "Write request bodies into the log");
}

void add_engine_options(CLI::App& command, ServeOptions& o) {
  EngineOptions& e = o.engine;
  command.add_option("--max-running", e.max_running, "Sequences in the batch (default: 16)");
  command.add_option("--max-waiting", e.max_waiting,
                     "Requests in the queue; more are refused with 429 (default: 1024)");
  command.add_option("--kv-bytes", e.kv_bytes,
                     "Memory of the KV cache (default: a quarter of what is free)");
  command
      .add_option("--prefix-cache", o.prefix_cache,
                  "What is reused of earlier prompts: off, exact or replay (default: replay)")
      ->check(CLI::IsMember({"off", "exact", "replay"}));
  command.add_option("--prefix-cache-bytes", e.prefix_cache_bytes,
                     "Host memory for saved states (default: 256 MB)");
  command.add_option("--prefix-spill-dir", e.prefix_spill_dir,
                     "Folder that saved states move to before they are dropped");
  command.add_option("--prefix-spill-bytes", e.prefix_spill_bytes, "Its size (default: 4 GiB)");
  command.add_option("--trace", e.trace_file, "Write a Chrome trace of the engine");
}

}  // namespace

void add_serve(CLI::App& app) {
  auto o = std::make_shared<ServeOptions>();
  CLI::App* command = app.add_subcommand("serve", "Answer OpenAI- and Anthropic-style requests");
  o->model.prefill = "replay";
  o->server.io_threads = default_io_threads();
  command->add_option("--config", o->config, "TOML file with these options under their long names");
  add_http_options(*command, *o);
  add_engine_options(*command, *o);
  add_sharing_options(*command, o->sharing);
  add_rank_options(*command, o->ranks);
  add_model_options(*command, o->model);
  add_draft_options(*command, o->draft);
  command->callback([o, command] {
    if (!o->config.empty()) apply_config_file(*command, o->config);
    run(*o);
  });
}

}  // namespace peregrine
