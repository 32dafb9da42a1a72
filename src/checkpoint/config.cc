// Reads both forms of the configuration. One function a part of the model, and each field is read
// once: a key has its Hugging Face name and its inference name side by side.
#include "checkpoint/config.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/fail.h"
#include "checkpoint/json_object.h"
#include "checkpoint/mapped_file.h"

namespace peregrine {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Limits that no real model comes near. They keep products of sides inside 64 bits and the tensor
// table inside memory, whatever the file says.
constexpr int kMaxSide = 1 << 20;
constexpr int kMaxVocab = 1 << 24;
constexpr int kMaxHeads = 4096;
constexpr int kMaxHeadDim = 1 << 14;
constexpr int kMaxLayers = 1024;
constexpr int kMaxExperts = 1 << 14;
constexpr int kMaxTokens = 1 << 30;
constexpr double kMaxFloat = std::numeric_limits<float>::max();

enum class Form { kHuggingFace, kInference };

// The object that holds the language keys, with the key names of the form at hand.
class Keys {
 public:
  Keys(JsonObject object, Form form) : object_(std::move(object)), form_(form) {}

  int integer(const char* hf, const char* inference, int low, int high) {
    return static_cast<int>(object_.integer(name(hf, inference), low, high));
  }
  int64_t big(const char* hf, const char* inference, int64_t low, int64_t high) {
    return object_.integer(name(hf, inference), low, high);
  }
  double number(const char* hf, const char* inference, double low) {
    return object_.number(name(hf, inference), low, kMaxFloat);
  }
  std::vector<int> integers(const char* hf, const char* inference, int low, int high) {
    const std::vector<int64_t> wide = object_.integers(name(hf, inference), low, high);
    return {wide.begin(), wide.end()};
  }
  const char* name(const char* hf, const char* inference) const {
    return form_ == Form::kHuggingFace ? hf : inference;
  }
  bool is_hf() const { return form_ == Form::kHuggingFace; }
  JsonObject& object() { return object_; }

 private:
  JsonObject object_;
  Form form_;
};

void read_backbone(Keys& keys, ModelConfig& c) {
  c.vocab_size = keys.integer("vocab_size", "vocab_size", 1, kMaxVocab);
  c.dim = keys.integer("hidden_size", "dim", 1, kMaxSide);
  c.n_layers = keys.integer("num_hidden_layers", "n_layers", 1, kMaxLayers);
  c.n_mtp_layers = keys.integer("num_nextn_predict_layers", "n_mtp_layers", 0, 64);
  c.n_heads = keys.integer("num_attention_heads", "n_heads", 1, kMaxHeads);
  c.head_dim = keys.integer("head_dim", "head_dim", 1, kMaxHeadDim);
  c.rope_head_dim = keys.integer("qk_rope_head_dim", "rope_head_dim", 2, kMaxHeadDim);
  c.q_lora_rank = keys.integer("q_lora_rank", "q_lora_rank", 1, kMaxSide);
  c.o_lora_rank = keys.integer("o_lora_rank", "o_lora_rank", 1, kMaxHeadDim);
  c.o_groups = keys.integer("o_groups", "o_groups", 1, kMaxHeads);
  c.window_size = keys.integer("sliding_window", "window_size", 1, kMaxSide);
  c.norm_eps = static_cast<float>(keys.number("rms_norm_eps", "norm_eps", 0));
  c.hc_mult = keys.integer("hc_mult", "hc_mult", 1, 16);
  c.hc_sinkhorn_iters = keys.integer("hc_sinkhorn_iters", "hc_sinkhorn_iters", 1, 10000);
  c.hc_eps = static_cast<float>(keys.number("hc_eps", "hc_eps", 0));
  if (keys.is_hf()) {
    JsonObject& object = keys.object();
    object.integer("num_key_value_heads", 1, 1);
    object.text("hidden_act", {"silu"});
    if (object.boolean("attention_bias")) object.refuse("attention_bias", "false");
  }
}

void read_experts(Keys& keys, ModelConfig& c) {
  JsonObject& object = keys.object();
  c.moe_inter_dim = keys.integer("moe_intermediate_size", "moe_inter_dim", 1, kMaxSide);
  c.n_routed_experts = keys.integer("n_routed_experts", "n_routed_experts", 1, kMaxExperts);
  keys.integer("n_shared_experts", "n_shared_experts", 1, 1);
  c.n_activated_experts =
      keys.integer("num_experts_per_tok", "n_activated_experts", 1, kMaxExperts);
  const std::string score =
      object.text(keys.name("scoring_func", "score_func"), {"sqrtsoftplus", "sigmoid", "softmax"});
  c.score_func = score == "sqrtsoftplus" ? ScoreFunc::kSqrtSoftplus
                 : score == "sigmoid"    ? ScoreFunc::kSigmoid
                                         : ScoreFunc::kSoftmax;
  if (keys.is_hf()) object.text("topk_method", {"noaux_tc"});
  if (object.has("norm_topk_prob")) c.norm_topk_prob = object.boolean("norm_topk_prob");
  c.route_scale = static_cast<float>(keys.number("routed_scaling_factor", "route_scale", 0));
  if (object.has("gate_temp")) {
    c.gate_temp = static_cast<float>(object.number("gate_temp", 1e-6, kMaxFloat));
  }
  c.swiglu_limit = static_cast<float>(keys.number("swiglu_limit", "swiglu_limit", 0));
}

// The YaRN values; in the Hugging Face form they are an object of their own.
void read_rope(Keys& keys, ModelConfig& c, const std::string& file) {
  c.rope_theta = keys.number("rope_theta", "rope_theta", 1);
  c.compress_rope_theta = keys.number("compress_rope_theta", "compress_rope_theta", 1);
  const auto read_scaling = [&](JsonObject& object, const char* factor, const char* original) {
    c.rope_factor = object.number(factor, 1, kMaxFloat);
    c.original_seq_len = static_cast<int>(object.integer(original, 1, kMaxTokens));
    c.beta_fast = object.number("beta_fast", 0, kMaxFloat);
    c.beta_slow = object.number("beta_slow", 0, kMaxFloat);
  };
  if (!keys.is_hf()) {
    read_scaling(keys.object(), "rope_factor", "original_seq_len");
    // A run-time limit of the reference; without it the model's own reach counts.
    c.max_position =
        keys.object().has("max_seq_len")
            ? keys.integer("", "max_seq_len", 1, kMaxTokens)
            : static_cast<int>(std::min<double>(kMaxTokens, c.original_seq_len * c.rope_factor));
    return;
  }
  c.max_position = keys.integer("max_position_embeddings", "", 1, kMaxTokens);
  JsonObject scaling(keys.object().object("rope_scaling"), file, "text_config.rope_scaling.");
  scaling.text("rope_type", {"yarn"});
  if (scaling.has("type")) scaling.text("type", {"yarn"});
  read_scaling(scaling, "factor", "original_max_position_embeddings");
  scaling.finish();
}

void read_compression(Keys& keys, ModelConfig& c) {
  c.compress_ratios = keys.integers("compress_ratios", "compress_ratios", 0, 2);
  c.kv_source_layers = keys.integers("kv_source_layer_ids", "kv_source_layers", 0, kMaxLayers);
  c.index_source_layers =
      keys.integers("index_source_layer_ids", "index_source_layers", 0, kMaxLayers);
  c.index_n_heads = keys.integer("index_n_heads", "index_n_heads", 1, kMaxHeads);
  c.index_head_dim = keys.integer("index_head_dim", "index_head_dim", 1, kMaxHeadDim);
  c.index_topk = keys.integer("index_topk", "index_topk", 1, kMaxTokens);
  c.candidate_source_layer =
      keys.integer("candidate_source_layer_id", "candidate_source_layer", -kMaxLayers, kMaxLayers);
  c.candidate_topk_blocks =
      keys.integer("candidate_topk_blocks", "candidate_topk_blocks", 0, kMaxTokens);
  c.candidate_block_size =
      keys.integer("candidate_block_size", "candidate_block_size", 0, kMaxSide);
}

void read_engram(Keys& keys, ModelConfig& c) {
  c.engram_layer_ids = keys.integers("engram_layer_ids", "engram_layer_ids", 0, kMaxLayers);
  if (!c.has_engram()) {
    keys.object().ignore({"engram_num_embeddings", "engram_max_ngram_size", "engram_vocab_size",
                          "engram_n_heads", "engram_head_dim", "engram_compressed_vocab_size",
                          keys.name("engram_pad_token_id", "engram_pad_id")});
    return;
  }
  c.engram_num_embeddings = keys.object().integers("engram_num_embeddings", 1, int64_t{1} << 40);
  c.engram_max_ngram = keys.integer("engram_max_ngram_size", "engram_max_ngram_size", 2, 16);
  c.engram_vocab_size = keys.big("engram_vocab_size", "engram_vocab_size", 1, int64_t{1} << 31);
  c.engram_n_heads = keys.integer("engram_n_heads", "engram_n_heads", 1, 64);
  c.engram_head_dim = keys.integer("engram_head_dim", "engram_head_dim", 1, kMaxHeadDim);
  c.engram_pad_id = keys.integer("engram_pad_token_id", "engram_pad_id", 0, kMaxVocab);
  c.engram_compressed_vocab_size =
      keys.integer("engram_compressed_vocab_size", "engram_compressed_vocab_size", 1, kMaxVocab);
}

void read_dspark(Keys& keys, ModelConfig& c) {
  if (c.n_mtp_layers == 0) {
    keys.object().ignore({"dspark_block_size", "dspark_noise_token_id", "dspark_target_layer_ids",
                          "dspark_markov_rank", "dspark_n_routed_experts",
                          keys.name("dspark_num_experts_per_tok", "dspark_n_activated_experts")});
    return;
  }
  c.dspark_block_size = keys.integer("dspark_block_size", "dspark_block_size", 0, 1024);
  c.dspark_noise_token_id =
      keys.integer("dspark_noise_token_id", "dspark_noise_token_id", 0, kMaxVocab);
  c.dspark_target_layer_ids =
      keys.integers("dspark_target_layer_ids", "dspark_target_layer_ids", 0, kMaxLayers);
  c.dspark_markov_rank = keys.integer("dspark_markov_rank", "dspark_markov_rank", 1, kMaxSide);
  c.dspark_n_routed_experts =
      keys.integer("dspark_n_routed_experts", "dspark_n_routed_experts", 1, kMaxExperts);
  c.dspark_n_activated_experts =
      keys.integer("dspark_num_experts_per_tok", "dspark_n_activated_experts", 1, kMaxExperts);
}

// Everything about the tower but its depth, which decides whether there is one.
void read_vision(JsonObject& object, Form form, ModelConfig& c) {
  const auto name = [&](const char* hf, const char* inference) {
    return std::string(form == Form::kHuggingFace ? hf : inference);
  };
  const auto integer = [&](const std::string& key, int high) {
    return static_cast<int>(object.integer(key, 1, high));
  };
  c.vision_dim = integer(name("hidden_size", "vision_dim"), kMaxSide);
  c.vision_n_heads = integer(name("num_attention_heads", "vision_n_heads"), kMaxHeads);
  c.vision_inter_dim = integer(name("intermediate_size", "vision_inter_dim"), kMaxSide);
  c.vision_patch_size = integer(name("patch_size", "vision_patch_size"), 1024);
  c.vision_downsample_ratio = integer(name("downsample_ratio", "vision_downsample_ratio"), 64);
  c.vision_max_n_token = integer(name("max_image_tokens", "vision_max_n_token"), kMaxSide);
  c.vision_min_pixels = object.integer(name("min_pixels", "vision_min_pixels"), 0, kMaxTokens);
  c.vision_rope_theta = object.number(name("rope_theta", "vision_rope_theta"), 1, kMaxFloat);
  const std::string wh_ratio = name("max_wh_ratio", "vision_max_wh_ratio");
  if (!object.value(wh_ratio).is_null()) object.refuse(wh_ratio, "null");
}

// fp8 with 32x32 tiles and fp4 experts, or nothing quantised; no checkpoint mixes them.
void read_hf_storage(JsonObject& top, ModelConfig& c, const std::string& file) {
  top.ignore({"dtype", "torch_dtype"});
  if (!top.has("quantization_config")) return;
  JsonObject quant(top.object("quantization_config"), file, "quantization_config.");
  quant.text("quant_method", {"fp8"});
  quant.text("scale_fmt", {"ue8m0"});
  if (quant.has("fmt")) quant.text("fmt", {"e4m3"});
  if (quant.has("activation_scheme")) quant.text("activation_scheme", {"dynamic"});
  if (quant.integers("weight_block_size", 1, kMaxSide) != std::vector<int64_t>{32, 32}) {
    quant.refuse("weight_block_size", "[32, 32]");
  }
  if (quant.has("expert_dtype")) quant.text("expert_dtype", {"fp4"});
  quant.finish();
  c.fp8_dense = c.fp4_experts = true;
}

void read_inference_storage(JsonObject& object, ModelConfig& c) {
  c.fp8_dense = object.text("dtype", {"fp8", "bf16"}) == "fp8";
  if (c.fp8_dense) {
    object.text("expert_dtype", {"fp4"});
    if (object.has("scale_fmt")) object.text("scale_fmt", {"ue8m0"});
  } else if (!object.value("expert_dtype").is_null()) {
    object.refuse("expert_dtype", "null beside the dtype 'bf16'");
  }
  c.fp4_experts = c.fp8_dense;
}

void read_language(Keys& keys, ModelConfig& c, const std::string& file) {
  read_backbone(keys, c);
  read_experts(keys, c);
  read_rope(keys, c, file);
  read_compression(keys, c);
  read_engram(keys, c);
  read_dspark(keys, c);
}

ModelConfig parse_hf(const json& document, const std::string& file) {
  ModelConfig c;
  JsonObject top(document, file, "");
  top.text("model_type", {"deepseek_v41"});
  Keys keys(JsonObject(top.object("text_config"), file, "text_config."), Form::kHuggingFace);
  read_language(keys, c, file);
  JsonObject& text = keys.object();
  if (text.has("tie_word_embeddings") && text.boolean("tie_word_embeddings")) {
    text.refuse("tie_word_embeddings", "false");
  }
  if (text.has("model_type")) text.text("model_type", {"deepseek_v41_text"});
  text.ignore({"use_cache", "initializer_range", "attention_dropout", "dtype", "torch_dtype",
               "bos_token_id", "eos_token_id", "pad_token_id", "transformers_version"});
  text.finish();

  if (top.has("vision_config") && !top.value("vision_config").is_null()) {
    JsonObject vision(top.object("vision_config"), file, "vision_config.");
    if (vision.has("model_type")) vision.text("model_type", {"deepseek_v41_vision"});
    c.vision_n_layers = static_cast<int>(vision.integer("num_hidden_layers", 1, kMaxLayers));
    read_vision(vision, Form::kHuggingFace, c);
    vision.ignore({"dtype", "torch_dtype", "initializer_range", "attention_dropout"});
    vision.finish();
    c.image_token_id = static_cast<int>(top.integer("image_token_id", 0, kMaxVocab));
  }
  read_hf_storage(top, c, file);
  if (top.has("tie_word_embeddings") && top.boolean("tie_word_embeddings")) {
    top.refuse("tie_word_embeddings", "false");
  }
  top.ignore({"architectures", "auto_map", "bos_token_id", "eos_token_id", "pad_token_id",
              "image_token_id", "vision_config", "use_cache", "transformers_version",
              "initializer_range", "_name_or_path"});
  top.finish();
  return c;
}

ModelConfig parse_inference(const json& document, const std::string& file) {
  ModelConfig c;
  Keys keys(JsonObject(document, file, ""), Form::kInference);
  read_language(keys, c, file);
  JsonObject& object = keys.object();
  read_inference_storage(object, c);
  c.vision_n_layers = keys.integer("", "vision_n_layers", 0, kMaxLayers);
  if (c.vision_n_layers > 0) {
    read_vision(object, Form::kInference, c);
    c.image_token_id = keys.integer("", "image_token_id", 0, kMaxVocab);
  } else {
    object.ignore({"vision_dim", "vision_n_heads", "vision_inter_dim", "vision_patch_size",
                   "vision_downsample_ratio", "vision_max_n_token", "vision_min_pixels",
                   "vision_rope_theta", "vision_max_wh_ratio", "image_token_id"});
  }
  object.ignore({"max_batch_size", "temperature"});
  object.finish();
  return c;
}

// Position of the last entry <= layer of an ascending list, -1 when there is none.
int last_at_or_before(const std::vector<int>& layers, int layer) {
  return static_cast<int>(std::upper_bound(layers.begin(), layers.end(), layer) - layers.begin()) -
         1;
}

}  // namespace

ModelConfig ModelConfig::parse(std::string_view json_text, const std::string& name_for_errors) {
  const json document = parse_json_object(json_text, name_for_errors);
  ModelConfig config;
  if (document.contains("text_config")) {
    config = parse_hf(document, name_for_errors);
  } else if (document.contains("dim")) {
    config = parse_inference(document, name_for_errors);
  } else {
    fail(ErrorKind::kBadCheckpoint,
         "{}: has neither 'text_config' (Hugging Face form) nor 'dim' (inference form)",
         name_for_errors);
  }
  config.validate(name_for_errors);
  return config;
}

ModelConfig ModelConfig::load(const std::string& path) {
  std::error_code ignored;
  const std::string file =
      fs::is_directory(path, ignored) ? (fs::path(path) / "config.json").string() : path;
  const MappedFile mapped(file);
  return parse(mapped.contents(), file);
}

int ModelConfig::kv_source_of(int layer) const {
  return last_at_or_before(kv_source_layers, layer);
}
int ModelConfig::index_source_of(int layer) const {
  return last_at_or_before(index_source_layers, layer);
}
bool ModelConfig::is_kv_source(int layer) const {
  return std::binary_search(kv_source_layers.begin(), kv_source_layers.end(), layer);
}
bool ModelConfig::is_index_source(int layer) const {
  return std::binary_search(index_source_layers.begin(), index_source_layers.end(), layer);
}
int ModelConfig::engram_table_of(int layer) const {
  const auto at = std::find(engram_layer_ids.begin(), engram_layer_ids.end(), layer);
  return at == engram_layer_ids.end() ? -1 : static_cast<int>(at - engram_layer_ids.begin());
}

}  // namespace peregrine
