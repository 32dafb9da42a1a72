// The shape of a model: every dimension named, with its unit and meaning (spec: model.md section
// 2). Read from the Hugging Face config.json or from the release's inference config; checked at
// load.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace peregrine {

enum class ScoreFunc { kSqrtSoftplus, kSigmoid, kSoftmax };

struct ModelConfig {
  // backbone
  int vocab_size = 0;     // rows of embedding and head
  int dim = 0;            // d, width of the stream
  int n_layers = 0;       // L, backbone layers
  int n_heads = 0;        // H
  int head_dim = 0;       // D, of q and of the shared k = v vector
  int rope_head_dim = 0;  // R, the last R dims of a head rotate
  int q_lora_rank = 0;    // query bottleneck
  int o_lora_rank = 0;    // output bottleneck of one group
  int o_groups = 0;       // output groups of n_heads / o_groups heads
  int window_size = 0;    // W, positions a query sees in its ring, itself included
  float norm_eps = 0;     // of every RMS norm of the language model
  int max_position = 0;   // longest context in tokens

  // experts
  int moe_inter_dim = 0;  // inner width of every expert
  int n_routed_experts = 0;
  int n_activated_experts = 0;
  ScoreFunc score_func = ScoreFunc::kSqrtSoftplus;
  bool norm_topk_prob = true;
  float route_scale = 1;   // multiplies normalised routing weights
  float gate_temp = 1;     // divides router logits
  float swiglu_limit = 0;  // clamp in routed and shared experts; 0 = none

  // rotary embedding
  double rope_theta = 0;           // layers with ratio 0 and the drafter
  double compress_rope_theta = 0;  // layers with ratio > 0, with YaRN:
  double rope_factor = 1;
  int original_seq_len = 0;
  double beta_fast = 0, beta_slow = 0;

  // compressed KV and its indexer
  std::vector<int> compress_ratios;      // n_layers + n_mtp_layers entries of 0, 1 or 2
  std::vector<int> kv_source_layers;     // layers that own compressed rows and index keys
  std::vector<int> index_source_layers;  // layers that run an indexer
  int index_n_heads = 0;
  int index_head_dim = 0;
  int index_topk = 0;               // compressed rows a query may read
  int candidate_source_layer = -1;  // publishes candidate blocks; negative = off
  int candidate_topk_blocks = 0;
  int candidate_block_size = 0;  // rows

  // hyper-connections
  int hc_mult = 0;  // n, residual copies
  int hc_sinkhorn_iters = 0;
  float hc_eps = 0;

  // Engram (spec: engram.md); all empty or 0 when absent
  std::vector<int> engram_layer_ids;
  std::vector<int64_t> engram_num_embeddings;  // rows of each table
  int engram_max_ngram = 0;
  int64_t engram_vocab_size = 0;  // where the prime search starts
  int engram_n_heads = 0;
  int engram_head_dim = 0;
  int engram_pad_id = 0;  // raw token id
  int engram_compressed_vocab_size = 0;

  // DSpark drafter (spec: dspark.md); n_mtp_layers = 0 when absent
  int n_mtp_layers = 0;
  int dspark_block_size = 0;
  int dspark_noise_token_id = 0;
  std::vector<int> dspark_target_layer_ids;
  int dspark_markov_rank = 0;
  int dspark_n_routed_experts = 0;
  int dspark_n_activated_experts = 0;

  // vision tower (spec: vision.md); vision_n_layers = 0 when absent
  int vision_n_layers = 0, vision_dim = 0, vision_n_heads = 0, vision_inter_dim = 0;
  int vision_patch_size = 0, vision_downsample_ratio = 0, vision_max_n_token = 0;
  int64_t vision_min_pixels = 0;
  double vision_rope_theta = 0;
  int image_token_id = -1;

  // storage: "fp8" dense weights with 32x32 scales or unquantised; "fp4" experts or unquantised
  bool fp8_dense = false;
  bool fp4_experts = false;

  // `path` is a JSON file or a directory holding config.json. Throws Error(kBadCheckpoint) naming
  // the key, the value found and what is allowed; unknown keys that change the mathematics are
  // refused.
  static ModelConfig load(const std::string& path);
  static ModelConfig parse(std::string_view json, const std::string& name_for_errors);

  // Consistency rules of model.md section 2; called by load and parse.
  void validate(const std::string& name_for_errors) const;

  // -- derived ---------------------------------------------------------------------------------
  bool has_engram() const { return !engram_layer_ids.empty(); }
  bool has_drafter() const { return n_mtp_layers > 0 && dspark_block_size > 0; }
  int ratio(int layer) const { return compress_ratios[layer]; }
  // Position in kv_source_layers / index_source_layers of the latest source at or before `layer`,
  // -1 when there is none.
  int kv_source_of(int layer) const;
  int index_source_of(int layer) const;
  bool is_kv_source(int layer) const;
  bool is_index_source(int layer) const;
  // Index of `layer` in engram_layer_ids, -1 when it has no table.
  int engram_table_of(int layer) const;
  // First layer of the decoder half: the last KV source (20 in the release).
  int first_decoder_layer() const { return kv_source_layers.back(); }
};

}  // namespace peregrine
