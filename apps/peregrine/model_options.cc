#include "model_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "base/fail.h"
#include "engine/model_impl.h"
#include "output.h"

namespace peregrine {

namespace fs = std::filesystem;

void add_device_options(CLI::App& command, ModelOptions& options) {
  options.model = bundled_model();
  CLI::Option* model =
      command.add_option("--model", options.model,
                         options.model.empty() ? "Checkpoint directory"
                                               : "Checkpoint directory (default: models/tiny)");
  if (options.model.empty()) model->required();
  command.add_option("--device", options.device, "What computes (default: cpu)");
  command.add_option("--threads", options.threads, "Worker threads (default: one a core)")
      ->check(CLI::Range(0, 4096));
  command
      .add_option("--gpu-memory-fraction", options.gpu_memory_fraction,
                  "Share of the GPU's memory that --device cuda may hold (default: 0.9)")
      ->check(CLI::Range(0.01, 1.0));
}

void add_model_options(CLI::App& command, ModelOptions& options) {
  add_device_options(command, options);
  command.add_option("--context", options.context_tokens,
                     "Tokens of prompt and answer together (default: the model's longest)");
  command
      .add_option("--prefill", options.prefill,
                  "exact: all layers see the whole prompt; replay: the second half of the "
                  "layers sees its last window only, about half the work")
      ->check(CLI::IsMember({"exact", "replay"}));
  command.add_option("--prefill-chunk", options.chunk_tokens,
                     "Prompt tokens computed at once (default: by memory)");
}

std::string bundled_model() {
  std::error_code error;
  fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (int up = 0; up < 4 && folder.has_relative_path(); ++up, folder = folder.parent_path()) {
    const fs::path candidate = folder / "models" / "tiny";
    if (fs::exists(candidate / "config.json", error)) return candidate.string();
  }
  return {};
}

std::shared_ptr<const Model> load_model(const ModelOptions& options, ExpertExchange* exchange,
                                        TensorGroup* tensors,
                                        const std::function<void(uint64_t bytes)>& on_bytes) {
  ProgressLine line;
  LoadOptions load{.device = options.device,
                   .threads = options.threads,
                   .gpu_memory_fraction = options.gpu_memory_fraction};
  load.on_progress = [&](const LoadProgress& p) {
    if (on_bytes) on_bytes(p.bytes_done);
    line.show(fmt::format("Loading: {:.1f} of {:.1f} GB, tensor {} of {}, {:.0f} s",
                          static_cast<double>(p.bytes_done) / 1e9,
                          static_cast<double>(p.bytes_total) / 1e9, p.tensors_done, p.tensors_total,
                          p.seconds),
              p.seconds);
  };
  return Model::Impl::load(options.model, load, exchange, tensors);
}

SessionOptions session_options(const ModelOptions& options, int draft_rows) {
  if (options.context_tokens < 0)
    fail(ErrorKind::kInvalidArgument, "--context {}: expected at least 1 token",
         options.context_tokens);
  return {.context_tokens = options.context_tokens,
          .chunk_tokens = options.chunk_tokens,
          .prefill = options.prefill == "replay" ? PrefillMode::kReplay : PrefillMode::kExact,
          .draft_rows = draft_rows};
}

}  // namespace peregrine
