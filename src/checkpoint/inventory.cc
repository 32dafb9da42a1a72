#include "checkpoint/inventory.h"

#include <array>

#include "base/fail.h"

namespace peregrine {
namespace {

constexpr std::array<std::string_view, 15> kKindNames = {
    "routed experts",    "attention",      "shared experts", "router",
    "hyper-connections", "compressors",    "indexers",       "layer norms",
    "token embedding",   "output head",    "final norm",     "Engram projections",
    "Engram tables",     "DSpark drafter", "vision",
};
static_assert(kKindNames.size() == static_cast<size_t>(TensorKind::kVision) + 1);

int64_t product(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t side : shape) count *= side;
  return count;
}

}  // namespace

std::string_view kind_name(TensorKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

KindTotal Inventory::of(TensorKind kind) const {
  for (const KindTotal& total : kinds) {
    if (total.kind == kind) return total;
  }
  return {kind, 0, 0, 0};
}

Inventory take_inventory(const ModelConfig& config) {
  std::array<KindTotal, kKindNames.size()> totals;
  Inventory inventory;
  for (const TensorSpec& spec : tensor_table(config)) {
    if (spec.optional) continue;
    KindTotal& total = totals[static_cast<size_t>(spec.kind)];
    const int64_t stored = product(spec.shape);
    // Only FP4 weights have I8 as their released type.
    const int values_each = spec.dtypes.front() == DType::kI8 ? 2 : 1;
    total.kind = spec.kind;
    total.tensors += 1;
    total.parameters += spec.is_scale ? 0 : stored * values_each;
    total.bytes += stored * dtype_bits(spec.dtypes.front()) / 8;
  }
  for (const KindTotal& total : totals) {
    if (total.tensors == 0) continue;
    inventory.kinds.push_back(total);
    inventory.tensors += total.tensors;
    inventory.parameters += total.parameters;
    inventory.bytes += total.bytes;
  }
  return inventory;
}

int64_t decode_bytes_per_token(const ModelConfig& c) {
  const Inventory inventory = take_inventory(c);
  int64_t bytes = 0;
  for (const KindTotal& total : inventory.kinds) {
    switch (total.kind) {
      case TensorKind::kRoutedExperts:
        bytes += total.bytes / c.n_routed_experts * c.n_activated_experts;
        break;
      case TensorKind::kEmbedding:
        bytes += total.bytes / c.vocab_size;  // one row
        break;
      case TensorKind::kEngramTables:
        // One row, values and scales, per order and head and table.
        bytes += static_cast<int64_t>(c.engram_layer_ids.size()) * (c.engram_max_ngram - 1) *
                 c.engram_n_heads * (c.engram_head_dim + c.engram_head_dim / 32);
        break;
      case TensorKind::kDrafter:
      case TensorKind::kVision:
        break;
      default:
        bytes += total.bytes;
    }
  }
  return bytes;
}

// e2m1 values with one e4m3 scale per 16.
int64_t kv_row_bytes(const ModelConfig& c) { return c.head_dim / 2 + c.head_dim / 16; }

// e2m1 values with one e8m0 scale per 32.
int64_t index_row_bytes(const ModelConfig& c) {
  return c.index_head_dim / 2 + c.index_head_dim / 32;
}

double kv_bytes_per_token(const ModelConfig& c) {
  double bytes = 0;
  for (const int layer : c.kv_source_layers) {
    bytes += static_cast<double>(kv_row_bytes(c) + index_row_bytes(c)) / c.ratio(layer);
  }
  return bytes;
}

int64_t kv_bytes(const ModelConfig& c, int64_t context_tokens) {
  int64_t bytes = 0;
  for (const int layer : c.kv_source_layers) {
    bytes += context_tokens / c.ratio(layer) * (kv_row_bytes(c) + index_row_bytes(c));
  }
  return bytes;
}

// e4m3 values with one e8m0 scale per 32.
int64_t ring_bytes(const ModelConfig& c) {
  const int64_t row = c.head_dim + c.head_dim / 32;
  return int64_t{c.n_layers + c.n_mtp_layers} * c.window_size * row;
}

// A value and a gate vector of f32 for every source that pools two tokens.
int64_t unfinished_group_bytes(const ModelConfig& c) {
  int64_t bytes = 0;
  for (const int layer : c.kv_source_layers) {
    if (c.ratio(layer) > 1) bytes += int64_t{2} * c.head_dim * sizeof(float);
  }
  return bytes;
}

MemoryPlan plan_memory(const ModelConfig& config, int64_t context_tokens, PlanDevice device) {
  if (context_tokens < 1 || context_tokens > config.max_position) {
    fail(ErrorKind::kInvalidArgument, "a context of {} tokens was asked for, expected 1 to {}",
         context_tokens, config.max_position);
  }
  const Inventory inventory = take_inventory(config);
  MemoryPlan plan;
  plan.context_tokens = context_tokens;
  plan.engram_table_bytes = inventory.of(TensorKind::kEngramTables).bytes;
  plan.weight_bytes = inventory.bytes - plan.engram_table_bytes;
  plan.state_bytes =
      kv_bytes(config, context_tokens) + ring_bytes(config) + unfinished_group_bytes(config);
  const int64_t near_compute = plan.weight_bytes + plan.state_bytes;
  plan.host_bytes = plan.engram_table_bytes + (device == PlanDevice::kCpu ? near_compute : 0);
  plan.device_bytes = device == PlanDevice::kCuda ? near_compute : 0;
  return plan;
}

}  // namespace peregrine
