// A few layers of the released shape with random weights made on the device, and sequences whose
// state is random too: what a benchmark needs to run steps at any context without computing them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "cache/state_store.h"
#include "checkpoint/synthetic.h"
#include "model/forward.h"
#include "model/weights.h"

namespace peregrine::bench {

// Layer kinds of the release.
enum class LayerKind {
  kEncoderSource,   // ratio 2, owns KV, scores all its rows
  kEncoder,         // ratio 2, reads the selection of the layer before
  kDecoderReuse,    // ratio 1, likewise
  kDecoderReindex,  // ratio 1, scores the rows of candidate blocks
};
const char* kind_name(LayerKind kind);

// One encoder source, one decoder source that publishes candidates, and `count` layers of `kind`.
ModelConfig layers_config(LayerKind kind, int count);

// CUDA with weights filled on the device.
class SyntheticBackend : public CudaBackend {
 public:
  using CudaBackend::CudaBackend;
  void expect(const void* host, SyntheticPattern pattern) { patterns_[host] = pattern; }
  const void* adopt_weight(const void* host, size_t bytes) override;
  // There are no bytes behind the addresses that could be looked at.
  const void* adopt_scales(std::string_view, const void* host, size_t bytes) override {
    return adopt_weight(host, bytes);
  }

 private:
  std::unordered_map<const void*, SyntheticPattern> patterns_;
  uint64_t seed_ = 1;
};

class SyntheticModel {
 public:
  SyntheticModel(const ModelConfig& config, int max_context, int max_rows, int slots);

  // `rows` rows at positions context .. context + rows - 1 of one sequence (or one row of each of
  // `rows` sequences), all logits wanted or the last row's alone.
  void step(int context, int rows, bool all_logits = true);
  // Milliseconds of a step on the device, the median of `repeats` batches of `batch` steps.
  double step_ms(int context, int rows, int batch, int repeats, bool all_logits = true);
  // Distinct experts that the layers of a step chose, the mean over layers.
  double distinct_experts(int context, int rows);

  ModelConfig config;
  std::unique_ptr<SyntheticBackend> backend;
  std::unique_ptr<TensorSource> source;
  std::optional<Weights> weights;
  std::optional<StateStore> state;
  std::optional<Forward> forward;

 private:
  std::vector<int32_t> tokens_;
};

double median(std::vector<double> values);

}  // namespace peregrine::bench
