// The released model's totals, as the specification states them.
#include "checkpoint/inventory.h"

#include <gtest/gtest.h>

#include "checkpoint/engram_primes.h"
#include "peregrine/error.h"
#include "support/fixtures.h"

namespace peregrine {
namespace {

ModelConfig released() { return ModelConfig::load(test::data_path("released/config.json")); }

TEST(Inventory, MatchesTheReleasedModelByKind) {
  struct Row {
    TensorKind kind;
    int64_t parameters, bytes;
  };
  const Row rows[] = {
      {TensorKind::kRoutedExperts, 543581798400, 288777830400},
      {TensorKind::kAttention, 5064696320, 5069721600},
      {TensorKind::kSharedExperts, 1415577600, 1416960000},
      {TensorKind::kRouter, 78673920, 157409280},
      {TensorKind::kHyperConnections, 39323760, 157295040},
      {TensorKind::kCompressors, 18352128, 36704256},
      {TensorKind::kIndexers, 43516416, 45130752},
      {TensorKind::kLayerNorms, 409600, 819200},
      {TensorKind::kEmbedding, 661913600, 1323827200},
      {TensorKind::kHead, 661913600, 1323827200},
      {TensorKind::kFinalNorm, 5120, 10240},
      {TensorKind::kEngramProjections, 314654720, 315043840},
      {TensorKind::kEngramTables, 196613849600, 202758032400},
      {TensorKind::kVision, 485268480, 970536960},
  };
  const Inventory inventory = take_inventory(released());
  for (const Row& row : rows) {
    SCOPED_TRACE(kind_name(row.kind));
    EXPECT_EQ(inventory.of(row.kind).parameters, row.parameters);
    EXPECT_EQ(inventory.of(row.kind).bytes, row.bytes);
  }
  EXPECT_EQ(inventory.of(TensorKind::kDrafter).bytes, 7932874632);
  EXPECT_EQ(inventory.of(TensorKind::kDrafter).tensors, 2401);
  EXPECT_EQ(inventory.of(TensorKind::kVision).tensors, 266);
  EXPECT_EQ(inventory.tensors, 96085);
  EXPECT_EQ(inventory.bytes, 510286023000);
}

TEST(Inventory, MatchesTheReleasedStateSizes) {
  const ModelConfig config = released();
  EXPECT_EQ(kv_row_bytes(config), 288);
  EXPECT_EQ(index_row_bytes(config), 68);
  EXPECT_EQ(kv_bytes_per_token(config), 890.0);
  EXPECT_EQ(kv_bytes(config, 131072), 116654080);
  EXPECT_EQ(kv_bytes(config, 1048576), 933232640);
  EXPECT_EQ(kv_bytes(config, 1), 356);  // half a group of two has no row yet
  EXPECT_EQ(ring_bytes(config), 2906112);
  EXPECT_EQ(unfinished_group_bytes(config), 3 * 4096);
  EXPECT_EQ(decode_bytes_per_token(config), 13035097920);
}

TEST(Inventory, PlansMemoryByDevice) {
  const ModelConfig config = released();
  const MemoryPlan cpu = plan_memory(config, 131072, PlanDevice::kCpu);
  const MemoryPlan cuda = plan_memory(config, 131072, PlanDevice::kCuda);
  EXPECT_EQ(cpu.weight_bytes + cpu.engram_table_bytes, 510286023000);
  EXPECT_EQ(cpu.state_bytes, 116654080 + 2906112 + 3 * 4096);
  EXPECT_EQ(cpu.device_bytes, 0);
  EXPECT_EQ(cpu.host_bytes, cuda.host_bytes + cuda.device_bytes);
  EXPECT_EQ(cuda.host_bytes, 202758032400);
  EXPECT_THROW(plan_memory(config, 0, PlanDevice::kCpu), Error);
  EXPECT_THROW(plan_memory(config, 1048577, PlanDevice::kCpu), Error);
}

// What the inventory counts is what a real file holds.
TEST(Inventory, AgreesWithTheTinyFile) {
  const ModelConfig config = ModelConfig::load(test::model_path("tiny"));
  const auto source = TensorSource::open(test::model_path("tiny"));
  const Inventory inventory = take_inventory(config);
  EXPECT_EQ(inventory.tensors, static_cast<int64_t>(source->tensors().size()));
  EXPECT_EQ(inventory.bytes, static_cast<int64_t>(source->total_bytes()));
}

TEST(EngramPrimes, MatchTheReleasedTables) {
  const auto primes = engram_primes(2, 4, 8, 16000000);
  ASSERT_EQ(primes.size(), 2u);
  ASSERT_EQ(primes[0].size(), 3u);
  EXPECT_EQ(primes[0][0], (std::vector<int64_t>{16000057, 16000079, 16000081, 16000097, 16000121,
                                                16000129, 16000133, 16000183}));
  EXPECT_EQ(primes[1][2], (std::vector<int64_t>{16000781, 16000799, 16000813, 16000819, 16000841,
                                                16000877, 16000879, 16000889}));
}

TEST(EngramPrimes, AgreeWithTrialDivision) {
  const auto primes = engram_primes(1, 2, 2000, 1);
  int64_t candidate = 1;
  for (const int64_t prime : primes[0][0]) {
    const auto divisible = [](int64_t n) {
      for (int64_t d = 2; d * d <= n; ++d) {
        if (n % d == 0) return true;
      }
      return n < 2;
    };
    while (divisible(candidate)) ++candidate;
    EXPECT_EQ(prime, candidate++);
  }
  // Strong pseudoprimes to the bases 2, 3, 5 and 7 must not pass.
  EXPECT_EQ(engram_primes(1, 2, 1, 3215031751)[0][0][0], 3215031767);
}

}  // namespace
}  // namespace peregrine
