// The consistency rules between keys of a configuration (spec: model.md section 2, last paragraph).
#include <algorithm>
#include <numeric>

#include "base/fail.h"
#include "checkpoint/config.h"
#include "checkpoint/engram_primes.h"

namespace peregrine {
namespace {

// Collects the file name once, so that a rule reads as condition and sentence.
class Rules {
 public:
  explicit Rules(const std::string& file) : file_(file) {}

  template <typename... Args>
  void require(bool holds, fmt::format_string<Args...> sentence, Args&&... args) const {
    if (!holds) {
      throw Error(ErrorKind::kBadCheckpoint,
                  file_ + ": " + fmt::format(sentence, std::forward<Args>(args)...));
    }
  }
  void require_multiple(int64_t value, int64_t block, std::string_view what) const {
    require(value % block == 0, "{} is {}, expected a multiple of {}", what, value, block);
  }
  void require_ascending(const std::vector<int>& layers, int n_layers,
                         std::string_view what) const {
    require(
        std::adjacent_find(layers.begin(), layers.end(), std::greater_equal<>()) == layers.end(),
        "{} is [{}], expected ascending layers without repetition", what, fmt::join(layers, ", "));
    require(layers.empty() || layers.back() < n_layers,
            "{} names layer {}, but the model has {} layers", what,
            layers.empty() ? 0 : layers.back(), n_layers);
  }

 private:
  const std::string& file_;
};

void check_attention(const ModelConfig& c, const Rules& rules) {
  rules.require(c.n_heads % c.o_groups == 0, "{} heads cannot be split into {} output groups",
                c.n_heads, c.o_groups);
  rules.require(c.rope_head_dim % 2 == 0 && c.rope_head_dim <= c.head_dim &&
                    c.rope_head_dim <= c.index_head_dim,
                "the rotating part of a head is {} wide, expected an even number within the head "
                "({}) and the index head ({})",
                c.rope_head_dim, c.head_dim, c.index_head_dim);
  // Cached rows are quantised in blocks of 32 whatever the storage of the weights.
  rules.require_multiple(c.head_dim, 32, "the head dimension");
  rules.require_multiple(c.index_head_dim, 32, "the index head dimension");
}

void check_storage_blocks(const ModelConfig& c, const Rules& rules) {
  if (!c.fp8_dense) return;
  rules.require_multiple(c.dim, 32, "the width of the stream");
  rules.require_multiple(c.moe_inter_dim, 32, "the inner width of an expert");
  rules.require_multiple(c.q_lora_rank, 32, "the query bottleneck");
  rules.require_multiple(int64_t{c.o_groups} * c.o_lora_rank, 32, "the output bottleneck");
}

void check_chains(const ModelConfig& c, const Rules& rules) {
  const size_t expected = static_cast<size_t>(c.n_layers) + c.n_mtp_layers;
  rules.require(c.compress_ratios.size() == expected,
                "compress_ratios has {} entries, expected {} ({} layers and {} draft stages)",
                c.compress_ratios.size(), expected, c.n_layers, c.n_mtp_layers);
  rules.require_ascending(c.kv_source_layers, c.n_layers, "the list of KV source layers");
  rules.require_ascending(c.index_source_layers, c.n_layers, "the list of index source layers");
  rules.require(!c.kv_source_layers.empty(), "there is no KV source layer, expected at least one");
  for (const int layer : c.kv_source_layers) {
    rules.require(c.is_index_source(layer), "KV source layer {} is not an index source layer",
                  layer);
  }
  for (int layer = 0; layer < c.n_layers; ++layer) {
    const int source = c.kv_source_of(layer);
    if (source < 0) {
      rules.require(c.ratio(layer) == 0,
                    "layer {} has ratio {} before the first KV source layer {}, expected 0", layer,
                    c.ratio(layer), c.kv_source_layers.front());
      rules.require(!c.is_index_source(layer),
                    "index source layer {} lies before the first KV source layer {}", layer,
                    c.kv_source_layers.front());
      continue;
    }
    const int owner = c.kv_source_layers[source];
    rules.require(c.ratio(owner) > 0, "KV source layer {} has ratio 0, expected 1 or 2", owner);
    rules.require(c.ratio(layer) == c.ratio(owner),
                  "layer {} has ratio {}, but its KV source layer {} has {}", layer, c.ratio(layer),
                  owner, c.ratio(owner));
  }
  for (int stage = 0; stage < c.n_mtp_layers; ++stage) {
    rules.require(c.ratio(c.n_layers + stage) == 0, "draft stage {} has ratio {}, expected 0",
                  stage, c.ratio(c.n_layers + stage));
  }
}

void check_candidates(const ModelConfig& c, const Rules& rules) {
  const int layer = c.candidate_source_layer;
  if (layer < 0) return;
  rules.require(c.is_index_source(layer), "candidate source layer {} is not an index source layer",
                layer);
  // Candidate blocks are row numbers of one KV source; a later source has other rows.
  rules.require(layer >= c.kv_source_layers.back(),
                "candidate source layer {} lies before the last KV source layer {}", layer,
                c.kv_source_layers.back());
  const int64_t rows = int64_t{c.candidate_topk_blocks} * c.candidate_block_size;
  rules.require(c.candidate_block_size > 0 && rows >= c.index_topk,
                "{} candidate blocks of {} rows are fewer rows than the {} an indexer selects",
                c.candidate_topk_blocks, c.candidate_block_size, c.index_topk);
}

void check_experts(const ModelConfig& c, const Rules& rules) {
  rules.require(c.n_activated_experts <= c.n_routed_experts,
                "{} experts a token exceed the {} routed experts", c.n_activated_experts,
                c.n_routed_experts);
  const int64_t experts = int64_t{c.n_layers} * c.n_routed_experts +
                          int64_t{c.n_mtp_layers} * c.dspark_n_routed_experts;
  constexpr int64_t kMaxTotal = 200'000;
  rules.require(experts <= kMaxTotal, "the layers have {} experts together, expected at most {}",
                experts, kMaxTotal);
}

void check_engram(const ModelConfig& c, const Rules& rules) {
  if (!c.has_engram()) return;
  rules.require_ascending(c.engram_layer_ids, c.n_layers, "engram_layer_ids");
  const size_t tables = c.engram_layer_ids.size();
  rules.require(c.engram_num_embeddings.size() == tables,
                "engram_num_embeddings has {} entries, expected {}, one a table",
                c.engram_num_embeddings.size(), tables);
  rules.require(c.engram_pad_id < c.vocab_size,
                "the Engram pad token {} is outside the vocabulary of {}", c.engram_pad_id,
                c.vocab_size);
  rules.require(c.engram_compressed_vocab_size <= c.vocab_size,
                "engram_compressed_vocab_size is {}, more than the vocabulary of {}",
                c.engram_compressed_vocab_size, c.vocab_size);
  rules.require_multiple(c.engram_head_dim, 32, "engram_head_dim");
  const int64_t columns =
      static_cast<int64_t>(tables) * (c.engram_max_ngram - 1) * c.engram_n_heads;
  constexpr int64_t kMaxColumns = 4096;
  rules.require(columns <= kMaxColumns, "the Engram tables have {} columns, expected at most {}",
                columns, kMaxColumns);
  const auto primes = engram_primes(static_cast<int>(tables), c.engram_max_ngram, c.engram_n_heads,
                                    c.engram_vocab_size);
  for (size_t table = 0; table < tables; ++table) {
    int64_t rows = 0;
    for (const auto& order : primes[table]) {
      rows = std::accumulate(order.begin(), order.end(), rows);
    }
    rules.require(
        c.engram_num_embeddings[table] == rows,
        "engram_num_embeddings states {} rows for table {}, but its primes from {} on sum "
        "to {}",
        c.engram_num_embeddings[table], table, c.engram_vocab_size, rows);
  }
}

void check_drafter(const ModelConfig& c, const Rules& rules) {
  if (c.n_mtp_layers == 0) return;
  rules.require(!c.dspark_target_layer_ids.empty(),
                "dspark_target_layer_ids is empty, expected the layers that feed the drafter");
  rules.require_ascending(c.dspark_target_layer_ids, c.n_layers, "dspark_target_layer_ids");
  rules.require(c.dspark_noise_token_id < c.vocab_size,
                "the drafter's noise token {} is outside the vocabulary of {}",
                c.dspark_noise_token_id, c.vocab_size);
  rules.require(c.dspark_n_activated_experts <= c.dspark_n_routed_experts,
                "{} experts a token exceed the drafter's {} routed experts",
                c.dspark_n_activated_experts, c.dspark_n_routed_experts);
}

void check_vision(const ModelConfig& c, const Rules& rules) {
  if (c.vision_n_layers == 0) return;
  rules.require(c.vision_dim % c.vision_n_heads == 0,
                "the vision width {} cannot be split into {} heads", c.vision_dim,
                c.vision_n_heads);
  rules.require(c.image_token_id < c.vocab_size,
                "the image token {} is outside the vocabulary of {}", c.image_token_id,
                c.vocab_size);
}

}  // namespace

void ModelConfig::validate(const std::string& name_for_errors) const {
  const Rules rules(name_for_errors);
  check_attention(*this, rules);
  check_storage_blocks(*this, rules);
  check_chains(*this, rules);
  check_candidates(*this, rules);
  check_experts(*this, rules);
  check_engram(*this, rules);
  check_drafter(*this, rules);
  check_vision(*this, rules);
}

}  // namespace peregrine
