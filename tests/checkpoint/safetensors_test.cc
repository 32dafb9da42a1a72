#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include "support/fixtures.h"

namespace peregrine {
namespace {

using test::Fixture;

TEST(Fixtures, ConvertsStoredTypes) {
  const Fixture expected(test::data_path("backbone_fp32/expected.safetensors"));
  EXPECT_EQ(expected.ints("long.tokens").size(), 65u);
  EXPECT_EQ(expected.view("fixed.long.decode.logits").shape_text(), "[24, 256]");
  const std::vector<float> logits = expected.floats("fixed.long.decode.logits");
  const std::vector<double> wide = expected.doubles("fixed.long.decode.logits");
  ASSERT_EQ(logits.size(), 24u * 256u);
  EXPECT_EQ(static_cast<double>(logits[7]), wide[7]);
  EXPECT_FALSE(expected.has("no such tensor"));
  EXPECT_EQ(expected.bytes("long.tokens").size(), 260u);
}

}  // namespace
}  // namespace peregrine
