#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include "support/fixtures.h"

namespace peregrine {
namespace {

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

}  // namespace
}  // namespace peregrine
