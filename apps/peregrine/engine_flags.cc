#include "engine_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "base/fail.h"

namespace peregrine {

void add_engine_options(CLI::App& command, EngineFlags& flags) {
  EngineOptions& o = flags.options;
  const CLI::AsSizeValue size(/*kb_is_1000=*/false);
  command
      .add_option("--max-running", o.max_running,
                  fmt::format("Sequences computed together (default: {})", o.max_running))
      ->check(CLI::Range(1, 4096));
  command
      .add_option("--kv-bytes", o.kv_bytes,
                  "Memory of packed KV pages, e.g. 8G (default: a quarter of what is free)")
      ->transform(size);
  command
      .add_option("--prefix-cache", flags.prefix_cache,
                  fmt::format("off; exact: reuse saved states, never changes a result; replay: "
                              "reuse any common beginning, approximate (default: {})",
                              flags.prefix_cache))
      ->check(CLI::IsMember({"off", "exact", "replay"}));
  command
      .add_option("--prefix-cache-bytes", o.prefix_cache_bytes,
                  "Memory of saved states (default: 256M)")
      ->transform(size);
  command.add_option("--trace", o.trace_file,
                     "Write a Chrome trace of host and device to this file");
}

EngineOptions engine_options(const EngineFlags& flags, const ModelOptions& model) {
  if (model.context_tokens < 0)
    fail(ErrorKind::kInvalidArgument, "--context {}: expected at least 1 token",
         model.context_tokens);
  EngineOptions engine = flags.options;
  engine.context_tokens = model.context_tokens;
  engine.prefill = model.prefill == "exact" ? PrefillMode::kExact : PrefillMode::kReplay;
  engine.prefix_cache = flags.prefix_cache == "off"     ? PrefixCacheMode::kOff
                        : flags.prefix_cache == "exact" ? PrefixCacheMode::kExact
                                                        : PrefixCacheMode::kReplay;
  return engine;
}

}  // namespace peregrine
