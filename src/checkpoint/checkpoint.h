// A checkpoint directory: config, tensors checked against the table the config implies, tokenizer
// path.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/safetensors.h"

namespace peregrine {

// One row of the tensor table (spec: model.md section 3).
struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;  // as stored in the file
  std::vector<DType> dtypes;   // allowed storage types; the first is the released one
  bool optional = false;       // e.g. gate.bias_vl without a vision tower
};

// Every tensor that a checkpoint of this config has, in file-name order.
std::vector<TensorSpec> tensor_table(const ModelConfig& config);

struct LoadProgress {
  uint64_t bytes_done = 0, bytes_total = 0;
  int tensors_done = 0, tensors_total = 0;
  double seconds = 0;
};

struct CheckpointOptions {
  // Called at most ten times a second and once at the end.
  std::function<void(const LoadProgress&)> on_progress;
};

struct Checkpoint {
  std::string path;
  ModelConfig config;
  std::unique_ptr<TensorSource> source;

  // Opens, validates names, shapes and types (missing, extra, mis-shaped and mis-typed tensors are
  // each named), checks scale bytes for NaN where the bytes are read anyway, and pre-faults the
  // mapping when it fits into free memory. Throws Error.
  static Checkpoint open(const std::string& path, const CheckpointOptions& options = {});
  const TensorView& tensor(const std::string& name) const;  // throws Error(kBadCheckpoint)
};

}  // namespace peregrine
