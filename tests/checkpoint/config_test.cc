#include "checkpoint/config.h"

#include <gtest/gtest.h>

#include "support/fixtures.h"

namespace peregrine {
namespace {

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

}  // namespace
}  // namespace peregrine
