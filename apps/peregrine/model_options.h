// Which model a command runs, where and with how much context: options shared by the commands that
// generate.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "peregrine/session.h"

namespace CLI {
class App;
}

namespace peregrine {

struct ModelOptions {
  std::string model;  // checkpoint directory
  std::string device = "cpu";
  int threads = 0;  // 0: one a core
  double gpu_memory_fraction = 0.9;
  int context_tokens = 0;  // 0: the model's longest
  std::string prefill = "exact";
  int chunk_tokens = 0;  // 0: chosen by the session
};

// --model, --device, --threads, --gpu-memory-fraction
void add_device_options(CLI::App& command, ModelOptions& options);
// and --context, --prefill, --prefill-chunk
void add_model_options(CLI::App& command, ModelOptions& options);

// models/tiny of the source tree that the program was built in; empty when it is not there.
std::string bundled_model();

class ExpertExchange;
class TensorGroup;

// Loads with a progress line; with `exchange` or `tensors` only what this rank holds. `on_bytes` is
// told how many bytes have been read. Throws Error.
std::shared_ptr<const Model> load_model(const ModelOptions& options,
                                        ExpertExchange* exchange = nullptr,
                                        TensorGroup* tensors = nullptr,
                                        const std::function<void(uint64_t bytes)>& on_bytes = {});

SessionOptions session_options(const ModelOptions& options, int draft_rows);

}  // namespace peregrine
