// Peak memory of generate: weights, packed KV and a bounded scratch, whatever the prompt's length.

#include <cstdio>

#include "checkpoint/inventory.h"
#include "program.h"

namespace peregrine::test {
namespace {

TEST(Memory, APromptNeedsWeightsKvAndBoundedScratch) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers have memory of their own";
#endif
  const ModelConfig config = ModelConfig::load(kTiny);
  std::string prompt;
  for (int i = 0; i < 1000; ++i) prompt += " the boy 7";  // four tokens each
  const ProgramResult result =
      run_program({"generate", "--max-tokens", "4", "--temperature", "0"}, prompt);
  ASSERT_EQ(result.code, 0) << result.err;
  ASSERT_NE(result.err.find("prompt 4001 tokens"), std::string::npos) << result.err;

  const int64_t weights = take_inventory(config).bytes;
  const int64_t kv = kv_bytes(config, 4005) + ring_bytes(config);
  constexpr int64_t kScratch = 64 << 20;
  std::printf("peak %.1f MB; weights %.1f MB, packed KV %.1f MB, rest %.1f MB\n",
              static_cast<double>(result.peak_bytes) / 1e6, static_cast<double>(weights) / 1e6,
              static_cast<double>(kv) / 1e6,
              static_cast<double>(result.peak_bytes - weights - kv) / 1e6);
  EXPECT_LE(result.peak_bytes, weights + kv + kScratch);
}

}  // namespace
}  // namespace peregrine::test
