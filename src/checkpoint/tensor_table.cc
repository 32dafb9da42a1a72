// The table of tensors (spec: model.md section 3, vision.md sections 3 to 5), written in its order.
#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "checkpoint/checkpoint.h"

namespace peregrine {
namespace {

using Shape = std::vector<int64_t>;

constexpr int64_t kTile = 32;  // values that share a scale

int64_t tiles(int64_t side) { return (side + kTile - 1) / kTile; }

// Adds tensors under one prefix and kind.
class Rows {
 public:
  Rows(std::vector<TensorSpec>& table, const ModelConfig& config, std::string prefix)
      : table_(table), config_(config), prefix_(std::move(prefix)) {}

  // A drafter's or tower's tensors count as one kind, whatever they do there.
  void all_of(TensorKind kind) { fixed_kind_ = kind, has_fixed_kind_ = true; }

  void bf16(TensorKind kind, const std::string& name, Shape shape) {
    add(kind, name, std::move(shape), {DType::kBF16, DType::kF32});
  }
  void f32(TensorKind kind, const std::string& name, Shape shape) {
    add(kind, name, std::move(shape), {DType::kF32});
  }
  // `name`.weight in FP8 with one scale a 32x32 tile. `or_bf16`: conversions may have widened it.
  void fp8(TensorKind kind, const std::string& name, int64_t out, int64_t in,
           bool or_bf16 = false) {
    if (!config_.fp8_dense) return bf16(kind, name + ".weight", {out, in});
    std::vector<DType> dtypes = {DType::kF8E4M3};
    if (or_bf16) dtypes.push_back(DType::kBF16);
    add(kind, name + ".weight", {out, in}, std::move(dtypes));
    scale(kind, name, {tiles(out), tiles(in)});
  }
  // `name`.weight in FP4 with one scale per 32 inputs of a row.
  void fp4(TensorKind kind, const std::string& name, int64_t out, int64_t in) {
    if (!config_.fp4_experts) return bf16(kind, name + ".weight", {out, in});
    add(kind, name + ".weight", {out, in / 2}, {DType::kI8, DType::kU8, DType::kF4});
    scale(kind, name, {out, tiles(in)});
  }
  // FP8 rows with a scale per 32 values of a row, quantised in every checkpoint.
  void fp8_rows(TensorKind kind, const std::string& name, int64_t rows, int64_t width) {
    add(kind, name + ".weight", {rows, width}, {DType::kF8E4M3});
    scale(kind, name, {rows, tiles(width)});
  }
  void make_last_optional() { table_.back().optional = true; }

 private:
  void add(TensorKind kind, const std::string& name, Shape shape, std::vector<DType> dtypes) {
    TensorSpec& spec = table_.emplace_back();
    spec.name = prefix_ + name;
    spec.shape = std::move(shape);
    spec.dtypes = std::move(dtypes);
    spec.kind = has_fixed_kind_ ? fixed_kind_ : kind;
  }
  void scale(TensorKind kind, const std::string& name, Shape shape) {
    add(kind, name + ".scale", std::move(shape), {DType::kF8E8M0});
    table_.back().is_scale = true;
  }

  std::vector<TensorSpec>& table_;
  const ModelConfig& config_;
  std::string prefix_;
  TensorKind fixed_kind_ = TensorKind::kAttention;
  bool has_fixed_kind_ = false;
};

// The rows marked + in the specification: in every layer and every draft stage.
void add_block(Rows& rows, const ModelConfig& c, int n_experts) {
  const int64_t heads_width = int64_t{c.n_heads} * c.head_dim;
  const int64_t output_rank = int64_t{c.o_groups} * c.o_lora_rank;
  rows.fp8(TensorKind::kAttention, "attn.wq_a", c.q_lora_rank, c.dim);
  rows.fp8(TensorKind::kAttention, "attn.wq_b", heads_width, c.q_lora_rank);
  rows.fp8(TensorKind::kAttention, "attn.wkv", c.head_dim, c.dim);
  rows.fp8(TensorKind::kAttention, "attn.wo_a", output_rank, heads_width / c.o_groups,
           /*or_bf16=*/true);
  rows.fp8(TensorKind::kAttention, "attn.wo_b", c.dim, output_rank);
  rows.bf16(TensorKind::kAttention, "attn.q_norm.weight", {c.q_lora_rank});
  rows.bf16(TensorKind::kAttention, "attn.kv_norm.weight", {c.head_dim});
  rows.f32(TensorKind::kAttention, "attn.attn_sink", {c.n_heads});
  rows.bf16(TensorKind::kLayerNorms, "attn_norm.weight", {c.dim});
  rows.bf16(TensorKind::kLayerNorms, "ffn_norm.weight", {c.dim});
  const int64_t mixes = int64_t{2 + c.hc_mult} * c.hc_mult;  // pre, post and the combination
  for (const char* half : {"attn", "ffn"}) {
    const std::string name = fmt::format("hc_{}_", half);
    rows.f32(TensorKind::kHyperConnections, name + "fn", {mixes, int64_t{c.hc_mult} * c.dim});
    rows.f32(TensorKind::kHyperConnections, name + "base", {mixes});
    rows.f32(TensorKind::kHyperConnections, name + "scale", {3});
  }
  rows.bf16(TensorKind::kRouter, "ffn.gate.weight", {n_experts, c.dim});
  rows.f32(TensorKind::kRouter, "ffn.gate.bias", {n_experts});
  rows.f32(TensorKind::kRouter, "ffn.gate.bias_vl", {n_experts});
  if (c.vision_n_layers == 0) rows.make_last_optional();
  rows.fp8(TensorKind::kSharedExperts, "ffn.shared_experts.w1", c.moe_inter_dim, c.dim);
  rows.fp8(TensorKind::kSharedExperts, "ffn.shared_experts.w3", c.moe_inter_dim, c.dim);
  rows.fp8(TensorKind::kSharedExperts, "ffn.shared_experts.w2", c.dim, c.moe_inter_dim);
  for (int e = 0; e < n_experts; ++e) {
    const std::string expert = fmt::format("ffn.experts.{}.", e);
    rows.fp4(TensorKind::kRoutedExperts, expert + "w1", c.moe_inter_dim, c.dim);
    rows.fp4(TensorKind::kRoutedExperts, expert + "w3", c.moe_inter_dim, c.dim);
    rows.fp4(TensorKind::kRoutedExperts, expert + "w2", c.dim, c.moe_inter_dim);
  }
}

void add_compression(Rows& rows, const ModelConfig& c, int layer) {
  if (c.is_kv_source(layer)) {
    rows.bf16(TensorKind::kCompressors, "attn.compressor.wkv.weight", {c.head_dim, c.dim});
    if (c.ratio(layer) > 1) {  // one row a token needs no gate between rows
      rows.bf16(TensorKind::kCompressors, "attn.compressor.wgate.weight", {c.head_dim, c.dim});
    }
    rows.bf16(TensorKind::kCompressors, "attn.compressor.norm.weight", {c.head_dim});
    rows.bf16(TensorKind::kIndexers, "attn.indexer.wk.weight", {c.index_head_dim, c.head_dim});
    rows.bf16(TensorKind::kIndexers, "attn.indexer.k_norm.weight", {c.index_head_dim});
  }
  if (c.is_index_source(layer)) {
    rows.fp8(TensorKind::kIndexers, "attn.indexer.wq_b",
             int64_t{c.index_n_heads} * c.index_head_dim, c.q_lora_rank);
    rows.bf16(TensorKind::kIndexers, "attn.indexer.weights_proj.weight", {c.index_n_heads, c.dim});
  }
}

void add_engram(Rows& rows, const ModelConfig& c, int layer) {
  const int table = c.engram_table_of(layer);
  if (table < 0) return;
  const int64_t looked_up = int64_t{c.engram_max_ngram - 1} * c.engram_n_heads * c.engram_head_dim;
  rows.fp8_rows(TensorKind::kEngramTables, "engram.embed", c.engram_num_embeddings[table],
                c.engram_head_dim);
  // One key per residual copy and one shared value.
  rows.fp8(TensorKind::kEngramProjections, "engram.wkv", int64_t{c.hc_mult + 1} * c.dim, looked_up);
  rows.bf16(TensorKind::kEngramProjections, "engram.q_weight", {c.hc_mult, c.dim});
  rows.bf16(TensorKind::kEngramProjections, "engram.k_weight", {c.hc_mult, c.dim});
}

// What the first and the last draft stage have beside a block; they may be the same stage.
void add_drafter_ends(Rows& rows, const ModelConfig& c, int stage) {
  const TensorKind kind = TensorKind::kDrafter;
  if (stage == 0) {
    const auto n_targets = static_cast<int64_t>(c.dspark_target_layer_ids.size());
    rows.fp8(kind, "main_proj", c.dim, n_targets * c.dim);
    rows.bf16(kind, "main_norm.weight", {c.dim});
  }
  if (stage == c.n_mtp_layers - 1) {
    rows.bf16(kind, "norm.weight", {c.dim});
    rows.bf16(kind, "markov_head.embed.weight", {c.vocab_size, c.dspark_markov_rank});
    rows.bf16(kind, "markov_head.head.weight", {c.vocab_size, c.dspark_markov_rank});
    rows.bf16(kind, "confidence_head.proj.weight", {1, int64_t{c.dim} + c.dspark_markov_rank});
  }
}

void add_vision(Rows& rows, const ModelConfig& c) {
  const TensorKind kind = TensorKind::kVision;
  const int64_t width = c.vision_dim;
  const auto affine = [&](const std::string& name, int64_t out, int64_t in) {
    rows.bf16(kind, name + ".weight", {out, in});
    rows.bf16(kind, name + ".bias", {out});
  };
  affine("vision.patch_embed.proj", width, int64_t{3} * c.vision_patch_size * c.vision_patch_size);
  for (int i = 0; i < c.vision_n_layers; ++i) {
    const std::string block = fmt::format("vision.blocks.{}.", i);
    rows.bf16(kind, block + "norm1.weight", {width});
    rows.bf16(kind, block + "norm2.weight", {width});
    affine(block + "attn.wqkv", 3 * width, width);
    affine(block + "attn.wo", width, width);
    rows.bf16(kind, block + "mlp.w1.weight", {2 * int64_t{c.vision_inter_dim}, width});
    rows.bf16(kind, block + "mlp.w2.weight", {width, c.vision_inter_dim});
  }
  rows.bf16(kind, "vision.norm.weight", {width});
  const int64_t neighbourhood = int64_t{c.vision_downsample_ratio} * c.vision_downsample_ratio;
  affine("aligner.w1", c.dim, neighbourhood * width);
  affine("aligner.w2", c.dim, c.dim);
  for (const char* delimiter : {"image_start", "image_end", "image_newline"}) {
    rows.bf16(kind, delimiter, {c.dim});
  }
}

}  // namespace

std::vector<TensorSpec> tensor_table(const ModelConfig& c) {
  std::vector<TensorSpec> table;
  for (int layer = 0; layer < c.n_layers; ++layer) {
    Rows rows(table, c, fmt::format("layers.{}.", layer));
    add_block(rows, c, c.n_routed_experts);
    add_compression(rows, c, layer);
    add_engram(rows, c, layer);
  }
  for (int stage = 0; stage < c.n_mtp_layers; ++stage) {
    Rows rows(table, c, fmt::format("mtp.{}.", stage));
    rows.all_of(TensorKind::kDrafter);
    add_block(rows, c, c.dspark_n_routed_experts);
    add_drafter_ends(rows, c, stage);
  }
  Rows rows(table, c, "");
  rows.bf16(TensorKind::kEmbedding, "embed.weight", {c.vocab_size, c.dim});
  rows.bf16(TensorKind::kHead, "head.weight", {c.vocab_size, c.dim});
  rows.bf16(TensorKind::kFinalNorm, "norm.weight", {c.dim});
  if (c.vision_n_layers > 0) add_vision(rows, c);
  std::sort(table.begin(), table.end(),
            [](const TensorSpec& a, const TensorSpec& b) { return a.name < b.name; });
  return table;
}

}  // namespace peregrine
