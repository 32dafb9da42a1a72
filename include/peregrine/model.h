// A loaded model: weights bound to a device, and its tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "peregrine/error.h"

namespace peregrine {

struct LoadProgress {
  uint64_t bytes_done = 0, bytes_total = 0;
  int tensors_done = 0, tensors_total = 0;
  double seconds = 0;
};

struct LoadOptions {
  std::string device = "cpu";        // "cpu", "reference", or "cuda" where built
  int threads = 0;                   // 0: one a core
  double gpu_memory_fraction = 0.9;  // share of the device's memory that cuda may hold, 0 .. 1
  std::function<void(const LoadProgress&)> on_progress;
};

// Immutable once loaded; shared by any number of sessions and engines, whose steps take turns.
class Model {
 public:
  // `path`: a checkpoint directory (config.json, safetensors, tokenizer.json). Throws Error.
  static std::shared_ptr<const Model> load(const std::string& path,
                                           const LoadOptions& options = {});
  ~Model();

  int vocab_size() const;
  int max_context() const;  // tokens
  bool has_drafter() const;
  std::string device_name() const;
  uint64_t weight_bytes() const;

  // Text to ids, spellings of special tokens recognised; and back.
  std::vector<int32_t> encode(std::string_view text) const;
  std::string decode(std::span<const int32_t> ids) const;

  struct Impl;  // src/engine/model_impl.h
  const Impl& impl() const { return *impl_; }

 private:
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace peregrine
