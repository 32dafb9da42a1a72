#include "checkpoint/config.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "peregrine/error.h"
#include "support/fixtures.h"

namespace peregrine {
namespace {

using nlohmann::json;

json read_json(const std::string& path) { return json::parse(std::ifstream(path)); }
json tiny_hf() { return read_json(test::model_path("tiny/config.json")); }
json tiny_inference() { return read_json(test::model_path("tiny/inference_config.json")); }

TEST(Config, AcceptsEveryBundledForm) {
  for (const char* name : {"backbone_fp32", "backbone_quant", "engram", "dspark", "released"}) {
    SCOPED_TRACE(name);
    EXPECT_NO_THROW(ModelConfig::load(test::data_path(name)));
  }
}

TEST(Config, ReadsTheReleasedShape) {
  const ModelConfig c = ModelConfig::load(test::data_path("released/config.json"));
  EXPECT_EQ(c.n_layers, 40);
  EXPECT_EQ(c.n_mtp_layers, 3);
  EXPECT_EQ(c.max_position, 1048576);
  EXPECT_EQ(c.norm_eps, 1e-20f);
  EXPECT_EQ(c.rope_factor, 16);
  EXPECT_EQ(c.vision_n_layers, 32);
  EXPECT_EQ(c.image_token_id, 129264);
  EXPECT_TRUE(c.fp8_dense && c.fp4_experts);
  EXPECT_EQ(c.first_decoder_layer(), 20);
  EXPECT_EQ(c.kv_source_of(1), -1);
  EXPECT_EQ(c.kv_source_of(13), 1);
  EXPECT_EQ(c.index_source_of(39), 7);
  EXPECT_EQ(c.engram_table_of(14), 1);
  EXPECT_EQ(c.engram_table_of(2), -1);
}

// Both files of the tiny model describe the same model.
TEST(Config, FormsAgree) {
  const ModelConfig a = ModelConfig::load(test::model_path("tiny"));
  const ModelConfig b = ModelConfig::load(test::model_path("tiny/inference_config.json"));
  EXPECT_EQ(a.dim, b.dim);
  EXPECT_EQ(a.max_position, b.max_position);
  EXPECT_EQ(a.compress_ratios, b.compress_ratios);
  EXPECT_EQ(a.route_scale, b.route_scale);
  EXPECT_EQ(a.rope_factor, b.rope_factor);
  EXPECT_EQ(a.engram_num_embeddings, b.engram_num_embeddings);
  EXPECT_EQ(a.dspark_target_layer_ids, b.dspark_target_layer_ids);
  EXPECT_EQ(a.fp4_experts, b.fp4_experts);
}

TEST(Config, ReadsUnquantisedFixtures) {
  const ModelConfig c = ModelConfig::load(test::data_path("backbone_fp32"));
  EXPECT_FALSE(c.fp8_dense || c.fp4_experts || c.has_engram() || c.has_drafter());
  EXPECT_EQ(c.vision_n_layers, 0);
  EXPECT_EQ(c.image_token_id, -1);
  EXPECT_EQ(c.max_position, 128);
}

// The run-time limit is not a property of the model; without it the model's own reach counts.
TEST(Config, InferenceFormNeedsNoLengthLimit) {
  json config = tiny_inference();
  config.erase("max_seq_len");
  EXPECT_EQ(ModelConfig::parse(config.dump(), "c").max_position, 4 * 4096);
}

TEST(Config, TakesDefaultsOfTwoKeysOnly) {
  json config = tiny_inference();
  config.erase("norm_topk_prob");
  config.erase("gate_temp");
  const ModelConfig c = ModelConfig::parse(config.dump(), "c");
  EXPECT_TRUE(c.norm_topk_prob);
  EXPECT_EQ(c.gate_temp, 1.0f);
}

// Every other key of the tiny model, where a part is present, is required.
TEST(Config, RequiresEveryKey) {
  const auto expect_required = [](const json& config, const std::string& key) {
    SCOPED_TRACE(key);
    try {
      ModelConfig::parse(config.dump(), "c");
      ADD_FAILURE() << "accepted without the key";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(key + "', which is required"), std::string::npos)
          << error.what();
    }
  };
  const json inference = tiny_inference(), text = tiny_hf()["text_config"];
  for (const auto& [key, unused] : inference.items()) {
    if (key == "norm_topk_prob" || key == "gate_temp" || key == "max_seq_len" || key == "dim") {
      continue;  // "dim" tells the forms apart
    }
    json config = inference;
    config.erase(key);
    expect_required(config, key);
  }
  for (const auto& [key, unused] : text.items()) {
    if (key == "norm_topk_prob" || key == "model_type" || key == "use_cache" ||
        key == "tie_word_embeddings" || key == "attention_dropout") {
      continue;
    }
    json config = tiny_hf();
    config["text_config"].erase(key);
    expect_required(config, key);
  }
}

struct Defect {
  const char* key;
  json value;
  const char* sentence;
};

void expect_refused(const json& config, const char* sentence) {
  try {
    ModelConfig::parse(config.dump(), "some/config.json");
    ADD_FAILURE() << "accepted, expected: " << sentence;
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.kind(), ErrorKind::kBadCheckpoint);
    EXPECT_NE(message.find(sentence), std::string::npos) << message;
    EXPECT_EQ(message.find("some/config.json: "), 0u) << message;
  }
}

TEST(Config, RefusesBadValuesOfTheInferenceForm) {
  const Defect defects[] = {
      {"n_layers", 10.0, "'n_layers' is 10.0, expected an integer from 1"},
      {"n_layers", "10", "'n_layers' is \"10\", expected an integer"},
      {"vocab_size", 1e300, "expected an integer"},
      {"vocab_size", 18446744073709551615ull, "expected an integer"},
      {"vocab_size", -5, "'vocab_size' is -5"},
      {"norm_eps", "tiny", "expected a number"},
      {"score_func", "relu", "'score_func' is \"relu\", expected 'sqrtsoftplus' or 'sigmoid'"},
      {"n_shared_experts", 2, "'n_shared_experts' is 2, expected an integer from 1 to 1"},
      {"norm_topk_prob", 1, "expected true or false"},
      {"dtype", "int4", "'dtype' is \"int4\", expected 'fp8' or 'bf16'"},
      {"expert_dtype", nullptr, "'expert_dtype' is null, expected 'fp4'"},
      {"logit_softcap", 30, "has the unknown key 'logit_softcap'"},
      {"compress_ratios", json::array({0, 2, 4}), "expected an array of integers from 0 to 2"},
      {"compress_ratios", json::array({0, 2}), "has 2 entries, expected 12"},
      {"compress_ratios", json::array({0, 2, 2, 2, 2, 1, 1, 2, 1, 1, 0, 0}),
       "layer 7 has ratio 2, but its KV source layer 5 has 1"},
      {"compress_ratios", json::array({1, 2, 2, 2, 2, 1, 1, 1, 1, 1, 0, 0}),
       "layer 0 has ratio 1 before the first KV source layer 1"},
      {"compress_ratios", json::array({0, 2, 2, 2, 2, 1, 1, 1, 1, 1, 0, 1}),
       "draft stage 1 has ratio 1, expected 0"},
      {"compress_ratios", json::array({0, 0, 0, 2, 2, 1, 1, 1, 1, 1, 0, 0}),
       "KV source layer 1 has ratio 0"},
      {"kv_source_layers", json::array(), "there is no KV source layer"},
      {"kv_source_layers", json::array({1, 5, 3}), "expected ascending layers"},
      {"kv_source_layers", json::array({1, 3, 5, 50}), "names layer 50, but the model has 10"},
      {"kv_source_layers", json::array({1, 3, 5, 6}), "KV source layer 6 is not an index source"},
      {"index_source_layers", json::array({0, 1, 3, 5, 7}), "index source layer 0 lies before"},
      {"candidate_source_layer", 6, "candidate source layer 6 is not an index source"},
      {"candidate_source_layer", 3, "lies before the last KV source layer 5"},
      {"candidate_topk_blocks", 2, "2 candidate blocks of 8 rows are fewer rows than the 128"},
      {"n_activated_experts", 17, "17 experts a token exceed the 16 routed experts"},
      {"n_heads", 7, "7 heads cannot be split into 2 output groups"},
      {"rope_head_dim", 128, "the rotating part of a head is 128 wide"},
      {"head_dim", 72, "the head dimension is 72, expected a multiple of 32"},
      {"moe_inter_dim", 80, "inner width of an expert is 80, expected a multiple of 32"},
      {"engram_num_embeddings", json::array({8058, 8185}),
       "states 8185 rows for table 1, but its primes from 2000 on sum to 8184"},
      {"engram_num_embeddings", json::array({8058}), "has 1 entries, expected 2"},
      {"engram_layer_ids", json::array({4, 1}), "engram_layer_ids is [4, 1], expected ascending"},
      {"engram_pad_id", 4096, "Engram pad token 4096 is outside the vocabulary"},
      {"dspark_target_layer_ids", json::array({7, 10}), "names layer 10"},
      {"dspark_noise_token_id", 5000, "noise token 5000 is outside the vocabulary"},
      {"dspark_n_activated_experts", 9, "9 experts a token exceed the drafter's 8"},
  };
  for (const Defect& defect : defects) {
    SCOPED_TRACE(defect.key);
    json config = tiny_inference();
    config[defect.key] = defect.value;
    expect_refused(config, defect.sentence);
  }
}

TEST(Config, RefusesBadValuesOfTheHuggingFaceForm) {
  const Defect in_text[] = {
      {"scoring_func", "tanh", "'text_config.scoring_func' is \"tanh\""},
      {"num_key_value_heads", 8, "'text_config.num_key_value_heads' is 8"},
      {"attention_bias", true, "'text_config.attention_bias' is true, expected false"},
      {"hidden_act", "gelu", "expected 'silu'"},
      {"topk_method", "greedy", "expected 'noaux_tc'"},
      {"tie_word_embeddings", true, "is true, expected false"},
      {"n_group", 8, "unknown key 'text_config.n_group'"},
      {"rope_scaling", nullptr, "'text_config.rope_scaling' is null, expected an object"},
      {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}}, "expected 'yarn'"},
  };
  for (const Defect& defect : in_text) {
    SCOPED_TRACE(defect.sentence);
    json config = tiny_hf();
    config["text_config"][defect.key] = defect.value;
    expect_refused(config, defect.sentence);
  }
  json config = tiny_hf();
  config["text_config"]["rope_scaling"]["mscale"] = 2;
  expect_refused(config, "unknown key 'text_config.rope_scaling.mscale'");
  config = tiny_hf();
  config["quantization_config"]["weight_block_size"] = {128, 128};
  expect_refused(config, "'quantization_config.weight_block_size' is [128,128], expected [32, 32]");
  config = tiny_hf();
  config["model_type"] = "llama";
  expect_refused(config, "'model_type' is \"llama\", expected 'deepseek_v41'");
  config = read_json(test::data_path("released/config.json"));
  config["vision_config"]["max_wh_ratio"] = 4;
  expect_refused(config, "'vision_config.max_wh_ratio' is 4, expected null");
}

TEST(Config, RefusesWhatIsNoConfig) {
  const auto refuse = [](const std::string& text, const char* sentence) {
    try {
      ModelConfig::parse(text, "c");
      ADD_FAILURE() << "accepted " << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(sentence), std::string::npos) << error.what();
    }
  };
  refuse("", "is not valid JSON");
  refuse("{\"dim\":", "is not valid JSON");
  refuse("[1]", "is a JSON array, expected an object");
  refuse("{}", "has neither 'text_config' (Hugging Face form) nor 'dim' (inference form)");
  refuse(R"({"dim":1,"dim":2})", "has the key 'dim' twice");
  const std::string deep = std::string(1000000, '[') + std::string(1000000, ']');
  refuse(R"({"dim":1,"vocab_size":)" + deep + "}", "'vocab_size' is a nested array");
  refuse(R"({"dim":1,"vocab_size":{"a":1}})", "'vocab_size' is an object");
  EXPECT_THROW(ModelConfig::load(test::data_path("no such directory")), Error);
}

}  // namespace
}  // namespace peregrine
