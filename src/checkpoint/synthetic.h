// Weights in memory that have the shape of a model but not its knowledge, for measuring speed
// without a checkpoint.
//
// Every tensor of tensor_table(config) in its released storage type, with values of a size that
// keeps activations finite: matrices have entries of about 1 / sqrt(inputs), norms are 1, biases
// and sinks 0. The same seed gives the same bytes.
#pragma once

#include <cstdint>
#include <memory>

#include "checkpoint/checkpoint.h"
#include "checkpoint/config.h"
#include "checkpoint/safetensors.h"

namespace peregrine {

// The language model of the release: 40 layers, width 5120, 384 experts, Engram, drafter.
ModelConfig released_config();

// A model like the release with other sizes, without Engram tables, drafter and vision tower.
struct SyntheticShape {
  int layers = 2;    // half of them (at least one) before the last KV source
  int experts = 32;  // routed, a layer
  int dim = 5120;
  int heads = 64;
  int expert_width = 2304;
  int vocab = 129280;
};

// Throws Error(kInvalidArgument) for sizes that make no model.
ModelConfig synthetic_config(const SyntheticShape& shape);

// How 64-bit random words become the bytes of a tensor: (word & keep) | set.
struct SyntheticPattern {
  uint64_t keep = 0, set = 0;
};
SyntheticPattern synthetic_pattern(const TensorSpec& spec, bool fp4_experts);

// Throws Error(kOutOfMemory) when the machine cannot hold the tensors.
std::unique_ptr<TensorSource> make_synthetic_source(const ModelConfig& config, uint64_t seed);

}  // namespace peregrine
