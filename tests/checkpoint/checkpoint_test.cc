#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/temporary_directory.h"
#include "peregrine/error.h"
#include "support/fixtures.h"

namespace peregrine {
namespace {

using nlohmann::json;

TEST(TensorTable, ReproducesTheReleasedTotals) {
  const ModelConfig config = ModelConfig::load(test::data_path("released/config.json"));
  const std::vector<TensorSpec> table = tensor_table(config);
  int64_t bytes = 0;
  for (const TensorSpec& spec : table) {
    int64_t elements = 1;
    for (const int64_t side : spec.shape) elements *= side;
    bytes += elements * dtype_bits(spec.dtypes.front()) / 8;
  }
  EXPECT_EQ(table.size(), 96085u);
  EXPECT_EQ(bytes, 510286023000);
}

TEST(TensorTable, OneStageDrafterHasBothEnds) {
  json text = json::parse(std::ifstream(test::data_path("dspark/config.json")));
  text["n_mtp_layers"] = 1;
  text["compress_ratios"].erase(6);
  text["compress_ratios"].erase(6);
  const auto table = tensor_table(ModelConfig::parse(text.dump(), "c"));
  const auto has = [&](const char* name) {
    return std::any_of(table.begin(), table.end(),
                       [&](const TensorSpec& spec) { return spec.name == name; });
  };
  EXPECT_TRUE(has("mtp.0.main_proj.weight"));
  EXPECT_TRUE(has("mtp.0.confidence_head.proj.weight"));
  EXPECT_FALSE(has("mtp.1.norm.weight"));
}

TEST(Checkpoint, OpensEveryBundledModel) {
  for (const std::string& path :
       {test::model_path("tiny"), test::data_path("backbone_fp32"),
        test::data_path("backbone_quant"), test::data_path("engram"), test::data_path("dspark")}) {
    SCOPED_TRACE(path);
    LoadProgress last;
    CheckpointOptions options;
    options.on_progress = [&](const LoadProgress& progress) { last = progress; };
    const Checkpoint checkpoint = Checkpoint::open(path, options);
    EXPECT_TRUE(checkpoint.resident);
    EXPECT_EQ(last.bytes_done, checkpoint.source->total_bytes());
    EXPECT_EQ(last.bytes_done, last.bytes_total);
    EXPECT_EQ(last.tensors_done, static_cast<int>(checkpoint.source->tensors().size()));
  }
}

TEST(Checkpoint, RenamesOtherConventions) {
  EXPECT_EQ(released_name("model.layers.3.self_attn.wq_a.weight_scale_inv"),
            "layers.3.attn.wq_a.scale");
  EXPECT_EQ(released_name("layers.3.mlp.gate.e_score_correction_bias"), "layers.3.ffn.gate.bias");
  EXPECT_EQ(released_name("model.embed.weight"), "embed.weight");
  EXPECT_EQ(released_name("vision.blocks.0.mlp.w1.weight"), "vision.blocks.0.mlp.w1.weight");
}

// A copy of the quantised fixture whose tensors can be changed before it is written.
class EditedCheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    source_ = TensorSource::open(test::data_path("backbone_quant/model.safetensors"));
    for (const TensorView& view : source_->tensors()) tensors_[view.name] = view;
    std::ifstream config(test::data_path("backbone_quant/config.json"));
    directory_.write("config.json", std::string(std::istreambuf_iterator<char>(config), {}));
  }

  TensorView& tensor(const std::string& name) { return tensors_.at(name); }
  void rename(const std::string& from, const std::string& to) {
    TensorView view = tensor(from);
    tensors_.erase(from);
    view.name = to;
    tensors_[to] = view;
  }
  // Replaces the tensor's bytes by a copy with one byte changed.
  void poke(const std::string& name, size_t offset, uint8_t value) {
    TensorView& view = tensor(name);
    auto& bytes = owned_.emplace_back(view.data, view.data + view.bytes);
    bytes[offset] = std::byte{value};
    view.data = bytes.data();
  }
  void write() const {
    std::vector<TensorView> views;
    for (const auto& [name, view] : tensors_) views.push_back(view);
    write_safetensors(directory_.file("model.safetensors"), views);
  }
  Checkpoint open(uint64_t memory_bytes = 0) const {
    write();
    CheckpointOptions options;
    options.memory_bytes = memory_bytes;
    return Checkpoint::open(directory_.path(), options);
  }
  void expect_refused(const char* sentence, uint64_t memory_bytes = 0) const {
    try {
      open(memory_bytes);
      ADD_FAILURE() << "accepted, expected: " << sentence;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kBadCheckpoint);
      EXPECT_NE(std::string(error.what()).find(sentence), std::string::npos) << error.what();
    }
  }

  const test::TemporaryDirectory directory_;
  std::unique_ptr<TensorSource> source_;
  std::map<std::string, TensorView> tensors_;
  std::vector<std::vector<std::byte>> owned_;
};

TEST_F(EditedCheckpointTest, NamesAMissingTensor) {
  tensors_.erase("layers.4.attn.compressor.norm.weight");
  expect_refused("'layers.4.attn.compressor.norm.weight' BF16 or F32 [64] is missing");
}

TEST_F(EditedCheckpointTest, NamesAMissingScale) {
  tensors_.erase("layers.4.attn.wkv.scale");
  expect_refused("'layers.4.attn.wkv.scale' F8_E8M0 [2, 4] is missing");
}

TEST_F(EditedCheckpointTest, NamesAnExtraTensor) {
  rename("norm.weight", "layers.8.ffn_norm.weight");
  expect_refused("'layers.8.ffn_norm.weight' BF16 [128] is not part of this model; 'norm.weight'");
}

TEST_F(EditedCheckpointTest, NamesAWrongShape) {
  tensor("layers.0.ffn.gate.weight").shape = {16, 64};
  expect_refused("'layers.0.ffn.gate.weight' has shape [16, 64], expected [8, 128]");
}

TEST_F(EditedCheckpointTest, NamesAWrongType) {
  tensor("layers.0.attn.wq_a.weight").dtype = DType::kU8;
  expect_refused("'layers.0.attn.wq_a.weight' has dtype U8, expected F8_E4M3");
}

TEST_F(EditedCheckpointTest, CountsManyDifferences) {
  for (int e = 0; e < 8; ++e) {
    tensors_.erase("layers.2.ffn.experts." + std::to_string(e) + ".w1.weight");
  }
  expect_refused("; and 3 more");
}

TEST_F(EditedCheckpointTest, RefusesAScaleBesideAWideWeight) {
  TensorView scale = tensor("layers.0.attn.wo_b.scale");  // 4 x 4, as wo_a's would be
  scale.name = "layers.0.attn.wo_a.scale";
  tensors_[scale.name] = scale;
  expect_refused("'layers.0.attn.wo_a.scale' F8_E8M0 [4, 4] is not part of this model");
}

TEST_F(EditedCheckpointTest, AcceptsFp4UnderItsOwnName) {
  TensorView& expert = tensor("layers.0.ffn.experts.0.w1.weight");
  expert.dtype = DType::kF4;
  expert.shape.back() *= 2;
  EXPECT_NO_THROW(open());
}

TEST_F(EditedCheckpointTest, AcceptsConvertedNames) {
  rename("layers.0.attn.wq_a.scale", "model.layers.0.self_attn.wq_a.weight_scale_inv");
  rename("norm.weight", "model.norm.weight");
  TensorView alias = tensor("embed.weight");
  alias.name = "mtp.0.embed.weight";
  tensors_[alias.name] = alias;
  const Checkpoint checkpoint = open();
  EXPECT_EQ(checkpoint.tensor("layers.0.attn.wq_a.scale").shape, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(checkpoint.source->find("mtp.0.embed.weight"), nullptr);
  EXPECT_THROW(checkpoint.tensor("model.norm.weight"), Error);
}

TEST_F(EditedCheckpointTest, RefusesOneTensorUnderTwoNames) {
  TensorView twice = tensor("norm.weight");
  twice.name = "model.norm.weight";
  tensors_[twice.name] = twice;
  expect_refused("two tensors mean 'norm.weight'");
}

TEST_F(EditedCheckpointTest, RefusesNaNCodes) {
  poke("layers.3.attn.wq_a.scale", 5, 0xFF);
  expect_refused("'layers.3.attn.wq_a.scale' has the NaN code 0xff at its byte 5");
}

TEST_F(EditedCheckpointTest, RefusesNaNWeights) {
  poke("layers.3.attn.wq_a.weight", 77, 0x7F);
  expect_refused("'layers.3.attn.wq_a.weight' has the NaN code 0x7f at its byte 77");
}

// Bytes that stay unread are not checked; the dense scales are small and always are.
TEST_F(EditedCheckpointTest, StaysMappedWhenMemoryIsShort) {
  poke("layers.3.ffn.experts.1.w2.scale", 0, 0xFF);
  EXPECT_FALSE(open(/*memory_bytes=*/1).resident);
  expect_refused("'layers.3.ffn.experts.1.w2.scale' has the NaN code 0xff");
  poke("layers.3.attn.wq_a.scale", 5, 0xFF);
  expect_refused("'layers.3.attn.wq_a.scale' has the NaN code 0xff", /*memory_bytes=*/1);
}

TEST_F(EditedCheckpointTest, RefusesATruncatedFile) {
  write();
  const std::string path = directory_.file("model.safetensors");
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  try {
    Checkpoint::open(directory_.path());
    ADD_FAILURE() << "accepted a truncated file";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("is it truncated?"), std::string::npos)
        << error.what();
  }
}

TEST(Checkpoint, RefusesAPathThatIsNoDirectory) {
  EXPECT_THROW(Checkpoint::open(test::model_path("tiny/config.json")), Error);
  EXPECT_THROW(Checkpoint::open(test::data_path("released")), Error);  // a config without weights
}

}  // namespace
}  // namespace peregrine
