#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <vector>

#include "base/bandwidth.h"

namespace peregrine {
namespace {

class ThreadPoolTest : public testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, EveryPieceRunsOnceAndIsSeenByTheCaller) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.threads(), GetParam());
  for (const int n : {0, 1, 2, 3, 7, 100, 1000}) {
    std::vector<int> runs(static_cast<size_t>(n), 0);
    pool.parallel_for(n, [&](int64_t i) { ++runs[static_cast<size_t>(i)]; });
    EXPECT_EQ(runs, std::vector<int>(static_cast<size_t>(n), 1)) << n;
  }
}

TEST_P(ThreadPoolTest, ThreadNumbersIndexScratchWithoutSharing) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> sums(static_cast<size_t>(pool.threads()), 0);
  const int64_t n = 5000;
  pool.parallel_for(n, [&](int64_t i, int thread) { sums.at(static_cast<size_t>(thread)) += i; });
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), int64_t{0}), n * (n - 1) / 2);
}

TEST_P(ThreadPoolTest, ManyShortLoopsInARow) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> values(8, 0);
  for (int loop = 0; loop < 20000; ++loop) {
    pool.parallel_for(8, [&](int64_t i) { values[static_cast<size_t>(i)] += i + loop; });
  }
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(values[static_cast<size_t>(i)], 20000 * i + int64_t{20000} * 19999 / 2);
  }
}

TEST_P(ThreadPoolTest, WorkersThatFellAsleepWakeUp) {
  ThreadPool pool(GetParam());
  for (int loop = 0; loop < 20; ++loop) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> runs{0};
    pool.parallel_for(50, [&](int64_t) { ++runs; });
    EXPECT_EQ(runs.load(), 50);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, testing::Values(1, 2, 3, 5));

TEST(Bandwidth, IsPositiveAlsoForBuffersBelowOnePiece) {
  ThreadPool pool(2);
  EXPECT_GT(measure_read_bandwidth(pool, 1), 0.0);
  EXPECT_GT(measure_read_bandwidth(pool, size_t{4} << 20), 0.0);
}

}  // namespace
}  // namespace peregrine
