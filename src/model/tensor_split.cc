#include "model/tensor_split.h"

#include <algorithm>
#include <charconv>

#include "base/fail.h"
#include "checkpoint/engram_primes.h"
#include "model/expert_exchange.h"

namespace peregrine {
namespace {

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// The layer of "layers.<n>...."
int layer_of(std::string_view tensor) {
  constexpr std::string_view kLayers = "layers.";
  int layer = -1;
  if (tensor.starts_with(kLayers))
    std::from_chars(tensor.data() + kLayers.size(), tensor.data() + tensor.size(), layer);
  return layer;
}

}  // namespace

Slice TensorSplit::share_of(int rank, int64_t count, int64_t unit) const {
  const int64_t units = (count + unit - 1) / unit;
  return {std::min(count, units * rank / ranks_ * unit),
          std::min(count, units * (rank + 1) / ranks_ * unit)};
}

int TensorSplit::owner(int64_t i, int64_t count, int64_t unit) const {
  const int64_t units = (count + unit - 1) / unit;
  // The inverse of share_of: the last rank whose first unit is not behind this one.
  return static_cast<int>(((i / unit + 1) * ranks_ - 1) / units);
}

Slice TensorSplit::heads(const ModelConfig& config) const {
  const int64_t heads = config.n_heads / config.o_groups;
  const Slice groups = this->groups(config);
  return {groups.begin * heads, groups.end * heads};
}

Slice TensorSplit::engram_columns(const ModelConfig& config) const {
  return share(int64_t{config.engram_max_ngram - 1} * config.engram_n_heads, 1);
}

Slice TensorSplit::engram_rows(const ModelConfig& config, int table) const {
  const auto primes =
      engram_primes(static_cast<int>(config.engram_layer_ids.size()), config.engram_max_ngram,
                    config.engram_n_heads, config.engram_vocab_size);
  const Slice columns = engram_columns(config);
  Slice rows;
  int64_t column = 0;
  for (const auto& order : primes[static_cast<size_t>(table)])
    for (const int64_t prime : order) {
      if (column < columns.begin) rows.begin += prime;
      if (column < columns.end) rows.end += prime;
      ++column;
    }
  return rows;
}

Slice TensorSplit::rows(const ModelConfig& config, std::string_view tensor, int64_t rows) const {
  if (const auto routed = routed_expert_of(config, tensor))
    return share(routed->of, 1).holds(routed->expert) ? Slice{0, rows} : Slice{};
  // `part` of `count` equal runs of rows.
  const auto runs = [&](Slice part, int64_t count) {
    return Slice{part.begin * rows / count, part.end * rows / count};
  };
  if (has(tensor, ".attn.wq_b.") || tensor.ends_with(".attn.attn_sink"))
    return runs(heads(config), config.n_heads);
  if (has(tensor, ".attn.wo_a.")) return runs(groups(config), config.o_groups);
  if (has(tensor, ".engram.embed."))
    return engram_rows(config, config.engram_table_of(layer_of(tensor)));
  if (has(tensor, ".attn.wo_b.") || has(tensor, ".shared_experts.") ||
      has(tensor, ".engram.wkv.") || has(tensor, ".main_proj.") || has(tensor, ".markov_head.") ||
      tensor == "embed.weight" || tensor == "head.weight") {
    // Of an FP8 matrix, whose block scales have a row a tile. None of these is stored in FP4.
    if (tensor.ends_with(".scale")) return share(rows, 1);
    return share(rows, kSplitRows);
  }
  return {0, rows};
}

TensorView TensorSplit::held(const ModelConfig& config, const TensorView& whole) const {
  if (whole.shape.empty() || whole.shape[0] == 0) return whole;
  const Slice rows = this->rows(config, whole.name, whole.shape[0]);
  const size_t row_bytes = whole.bytes / static_cast<size_t>(whole.shape[0]);
  TensorView part = whole;
  part.shape[0] = rows.size();
  part.data += static_cast<size_t>(rows.begin) * row_bytes;
  part.bytes = static_cast<size_t>(rows.size()) * row_bytes;
  return part;
}

void check_split(const ModelConfig& config) {
  const int64_t head_rows = int64_t{config.n_heads / config.o_groups} * config.head_dim;
  if (config.fp8_dense && (head_rows % kSplitRows != 0 || config.o_lora_rank % kSplitRows != 0))
    fail(ErrorKind::kInvalidArgument,
         "output groups of {} head rows and rank {} cannot be shared among ranks: expected "
         "multiples of {}",
         head_rows, config.o_lora_rank, kSplitRows);
}

}  // namespace peregrine
