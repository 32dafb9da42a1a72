// What a model of a given shape weighs, from its config alone (spec: model.md sections 1 and 6):
// parameters and bytes by kind, bytes of state, and the memory a context length needs.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/config.h"

namespace peregrine {

struct KindTotal {
  TensorKind kind = TensorKind::kRoutedExperts;
  int64_t tensors = 0;
  int64_t parameters = 0;  // values of weights, two per FP4 byte; scales are not parameters
  int64_t bytes = 0;       // in the released storage type, scales included
};

struct Inventory {
  std::vector<KindTotal> kinds;  // in the order of TensorKind, only those that occur
  int64_t tensors = 0;
  int64_t parameters = 0;
  int64_t bytes = 0;

  KindTotal of(TensorKind kind) const;  // zeros when it does not occur
};

std::string_view kind_name(TensorKind kind);  // "routed experts"

// Optional tensors are not counted.
Inventory take_inventory(const ModelConfig& config);

// Bytes of weights that decoding one token of one sequence reads.
int64_t decode_bytes_per_token(const ModelConfig& config);

// Packed compressed row and index key of one KV source, bytes.
int64_t kv_row_bytes(const ModelConfig& config);
int64_t index_row_bytes(const ModelConfig& config);
// Global state a token adds, over all KV sources.
double kv_bytes_per_token(const ModelConfig& config);
// Global state of one sequence of that many tokens: whole rows only.
int64_t kv_bytes(const ModelConfig& config, int64_t context_tokens);
// Window rings of one sequence, draft stages included.
int64_t ring_bytes(const ModelConfig& config);
// Unfinished groups of one sequence, kept in f32 while its length is odd.
int64_t unfinished_group_bytes(const ModelConfig& config);

enum class PlanDevice { kCpu, kCuda };

// Memory for one sequence of `context_tokens`.
struct MemoryPlan {
  int64_t context_tokens = 0;
  int64_t weight_bytes = 0;        // everything but the Engram tables
  int64_t engram_table_bytes = 0;  // always on the host; a token reads a few rows
  int64_t state_bytes = 0;         // global KV, rings and unfinished groups
  int64_t host_bytes = 0;
  int64_t device_bytes = 0;  // 0 on a CPU
};

// Throws Error(kInvalidArgument) when context_tokens is not within 1 and config.max_position.
MemoryPlan plan_memory(const ModelConfig& config, int64_t context_tokens, PlanDevice device);

}  // namespace peregrine
