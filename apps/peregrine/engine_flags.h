// How many sequences run at once, in how much memory: options shared by the commands that run an
// Engine.
#pragma once

#include <string>

#include "model_options.h"
#include "peregrine/engine.h"

namespace CLI {
class App;
}

namespace peregrine {

struct EngineFlags {
  EngineOptions options;
  std::string prefix_cache = "exact";
};

// --max-running, --kv-bytes, --prefix-cache, --prefix-cache-bytes, --trace; the defaults are those
// that `flags` has.
void add_engine_options(CLI::App& command, EngineFlags& flags);

// Both together. Throws Error(kInvalidArgument).
EngineOptions engine_options(const EngineFlags& flags, const ModelOptions& model);

}  // namespace peregrine
