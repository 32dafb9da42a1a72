// Ranks that load: all wait for the slowest, and one that dies or falls silent is named.
#include "parallel/loading_watch.h"

#include <gtest/gtest.h>

#include <thread>

#include "thread_group.h"

namespace peregrine::test {
namespace {

using std::chrono::milliseconds;

TEST(LoadingWatch, WaitsForTheSlowestLongerThanTheTimeout) {
  ThreadGroup group(3);
  std::atomic<int> loaded{0};
  const auto errors = ThreadGroup::run(3, [&](int rank) {
    LoadingWatch watch(group.transport(rank, 0), {.timeout_seconds = 0.3});
    if (rank == 1) std::this_thread::sleep_for(milliseconds(700));
    ++loaded;
    watch.wait_for_all();
    EXPECT_EQ(loaded, 3);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(LoadingWatch, NamesTheRankThatFallsSilent) {
  ThreadGroup group(3);
  const auto errors = ThreadGroup::run(3, [&](int rank) {
    LoadingWatch watch(group.transport(rank, 0), {.timeout_seconds = 0.4});
    watch.progress(3'000'000'000);
    if (rank == 1) return std::this_thread::sleep_for(milliseconds(100));  // then no sign any more
    watch.wait_for_all();
  });
  EXPECT_EQ(errors[0],
            "rank 0 of 3 stopped while loading: rank 1 has given no sign for 0 seconds, after 3.0 "
            "GB read");
}

TEST(LoadingWatch, NamesTheRankThatDied) {
  ThreadGroup group(2);
  const auto errors = ThreadGroup::run(2, [&](int rank) {
    if (rank == 1) return group.kill(1);
    LoadingWatch watch(group.transport(rank, 0), {.timeout_seconds = 60});
    watch.wait_for_all();
  });
  EXPECT_EQ(errors[0], "rank 0 of 2 stopped while loading: rank 1 has died, after 0.0 GB read");
}

}  // namespace
}  // namespace peregrine::test
