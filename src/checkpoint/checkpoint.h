// A checkpoint directory: its config, and its tensors checked against the table the config implies.
//
// open() names missing, extra, mis-shaped and mis-typed tensors, and refuses NaN codes in the bytes
// it reads. A checkpoint that fits into available memory is read once, front to back, so that later
// steps find every page; that pass is also the check. One that does not fit stays mapped only: the
// scales of the dense weights are checked, expert weights and Engram tables are not touched.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/safetensors.h"
#include "peregrine/model.h"

namespace peregrine {

// What a tensor belongs to: the rows of model.md section 1.
enum class TensorKind : uint8_t {
  kRoutedExperts,
  kAttention,  // projections, sinks, q and kv norms
  kSharedExperts,
  kRouter,
  kHyperConnections,
  kCompressors,
  kIndexers,
  kLayerNorms,
  kEmbedding,
  kHead,
  kFinalNorm,
  kEngramProjections,  // and gate weights
  kEngramTables,
  kDrafter,
  kVision,
};

// One row of the tensor table (spec: model.md section 3).
struct TensorSpec {
  std::string name;
  // As stored in the file. FP4 weights are [out, in / 2] bytes; where dtypes allow F4, a file that
  // uses it has [out, in] instead.
  std::vector<int64_t> shape;
  std::vector<DType> dtypes;  // allowed storage types; the first is the released one
  TensorKind kind = TensorKind::kAttention;
  bool optional = false;  // gate.bias_vl without a vision tower
  // Block scales of the weight of the same name; absent exactly where that weight is stored in BF16
  // or F32.
  bool is_scale = false;
};

// Every tensor that a checkpoint of this config has, ordered by name.
std::vector<TensorSpec> tensor_table(const ModelConfig& config);

// A tensor's name in the table: without the prefix "model." and with the release's own words for
// what other conversions call self_attn, mlp, weight_scale_inv and e_score_correction_bias.
std::string released_name(const std::string& name);

// Compares stored tensors, ordered by name, with the table of `config`. Throws
// Error(kBadCheckpoint) with one sentence that lists the first few differences and counts the rest.
void check_tensors(const ModelConfig& config, const TensorSource& source, const std::string& path);

struct CheckpointOptions {
  // Called at most ten times a second and once at the end.
  std::function<void(const LoadProgress&)> on_progress;
  // Bytes of weights that may be read ahead; larger checkpoints stay mapped. 0 = what the machine
  // has available.
  uint64_t memory_bytes = 0;
  // The bytes of a tensor that this process will touch; the others are not read, only the shape is
  // checked. Without a function: all.
  std::function<std::span<const std::byte>(const ModelConfig& config, const TensorView& view)> used;
};

struct Checkpoint {
  std::string path;
  ModelConfig config;
  std::unique_ptr<TensorSource> source;  // names as in the table, whatever the files call them
  bool resident = false;                 // every byte was read at open

  // `path` is a directory with config.json and the tensor files. Throws Error.
  static Checkpoint open(const std::string& path, const CheckpointOptions& options = {});
  const TensorView& tensor(const std::string& name) const;  // throws Error(kBadCheckpoint)
};

}  // namespace peregrine
