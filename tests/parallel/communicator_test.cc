// Collectives over threads: what arrives, in which order sums add, and what ends a group.
#include "parallel/communicator.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>

#include "thread_group.h"

namespace peregrine::test {
namespace {

std::string text(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
Bytes bytes_of(const std::string& s) {
  const auto* p = reinterpret_cast<const std::byte*>(s.data());
  return {p, p + s.size()};
}

TEST(Communicator, DeliversEveryPartToItsRank) {
  constexpr int kRanks = 4;
  ThreadGroup group(kRanks);
  const auto errors = ThreadGroup::run(kRanks, [&](int rank) {
    const auto c = group.open(rank, 0);
    for (int round = 0; round < 50; ++round) {
      std::vector<Bytes> out;
      for (int to = 0; to < kRanks; ++to)
        // Some parts are empty, others differ in length.
        out.push_back(bytes_of(to == (rank + round) % kRanks
                                   ? ""
                                   : fmt::format("{} to {} in {}", rank, to, round * round)));
      const auto in = c->all_to_all({.tag = "parts", .layer = round}, out);
      for (int from = 0; from < kRanks; ++from)
        EXPECT_EQ(text(in[static_cast<size_t>(from)]),
                  rank == (from + round) % kRanks
                      ? ""
                      : fmt::format("{} to {} in {}", from, rank, round * round));
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// (1e8 + 1) - 1e8 depends on the order: in rank order the 1 is lost, whoever comes first.
TEST(Communicator, SumsAddInRankOrder) {
  constexpr int kRanks = 4;
  const float parts[kRanks] = {1e8f, 1.0f, -1e8f, 0.5f};
  const float expected = ((1e8f + 1.0f) + -1e8f) + 0.5f;
  for (int round = 0; round < 20; ++round) {
    ThreadGroup group(kRanks);
    std::vector<float> sums(kRanks);
    ThreadGroup::run(kRanks, [&](int rank) {
      if (rank == round % kRanks) std::this_thread::sleep_for(std::chrono::microseconds(200));
      const auto c = group.open(rank, 0);
      std::vector<float> value = {parts[rank]};
      c->all_reduce_sum({.tag = "sum", .shape = 1}, value);
      sums[static_cast<size_t>(rank)] = value[0];
    });
    for (const float sum : sums) EXPECT_EQ(sum, expected);
  }
}

TEST(Communicator, RanksOutOfStepEndWithBothTags) {
  ThreadGroup group(2);
  const auto errors = ThreadGroup::run(2, [&](int rank) {
    const auto c = group.open(rank, 0);
    c->set_step(40 + rank);
    c->barrier("start", 5);
    std::vector<Bytes> out(2);
    c->all_to_all({.tag = rank == 0 ? "dispatch" : "combine", .layer = 3, .shape = 256}, out);
  });
  EXPECT_EQ(
      errors[0],
      "rank 0 of 2 stopped in step 40: collective 1 is \"dispatch\" of layer 3 with shape 256 "
      "here, but rank 1 in its step 41 is at 1, \"combine\" of layer 3 with shape 256");
  EXPECT_EQ(errors[1],
            "rank 1 of 2 stopped in step 41: collective 1 is \"combine\" of layer 3 with shape 256 "
            "here, but rank 0 in its step 40 is at 1, \"dispatch\" of layer 3 with shape 256");
}

// The root waits for nobody: it may be several messages ahead.
TEST(Communicator, BroadcastComesFromOneRank) {
  ThreadGroup group(3);
  std::atomic<bool> root_done = false;
  const auto errors = ThreadGroup::run(3, [&](int rank) {
    const auto c = group.open(rank, 0);
    while (rank != 1 && !root_done) std::this_thread::yield();
    for (int round = 0; round < 3; ++round) {
      const Bytes mine = bytes_of(rank == 1 ? "root " + std::to_string(round) : "nobody's");
      const auto got = c->broadcast({.tag = "orders"}, 1, mine);
      EXPECT_EQ(text({got.begin(), got.end()}), "root " + std::to_string(round));
    }
    if (rank == 1) root_done = true;
    c->barrier("end", 8);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(Communicator, BroadcastMustMeetItself) {
  ThreadGroup group(2);
  const auto errors = ThreadGroup::run(2, [&](int rank) {
    const auto c = group.open(rank, 0);
    if (rank == 0) {
      c->broadcast({.tag = "orders"}, 0, bytes_of("x"));
    } else {
      c->all_gather({.tag = "experts", .layer = 3}, bytes_of("x"));
    }
  });
  EXPECT_NE(errors[1].find("collective 0 is \"experts\" of layer 3"), std::string::npos)
      << errors[1];
}

TEST(Communicator, LayerAndShapeMustAgree) {
  for (const bool layer : {false, true}) {
    ThreadGroup group(2);
    const auto errors = ThreadGroup::run(2, [&](int rank) {
      const auto c = group.open(rank, 0);
      std::vector<Bytes> out(2);
      c->all_to_all({.tag = "x", .layer = layer ? rank : 0, .shape = layer ? 1u : 1u + rank}, out);
    });
    for (const std::string& error : errors)
      EXPECT_NE(error.find("collective 0 is \"x\" of layer"), std::string::npos) << error;
  }
}

TEST(Communicator, DeadRankEndsTheOthers) {
  ThreadGroup group(3);
  const auto errors = ThreadGroup::run(3, [&](int rank) {
    const auto c = group.open(rank, 0);
    c->set_step(7);
    if (rank == 1) return group.kill(1);
    c->barrier("start", 60);
  });
  EXPECT_EQ(errors[0],
            "rank 0 of 3 stopped in step 7: rank 1 has died, its part of \"start\" is missing");
  EXPECT_EQ(errors[2],
            "rank 2 of 3 stopped in step 7: rank 1 has died, its part of \"start\" is missing");
}

TEST(Communicator, SilentRankEndsTheOthersInTime) {
  ThreadGroup group(2);
  const auto errors = ThreadGroup::run(2, [&](int rank) {
    if (rank == 1) return;  // alive, but never comes
    const auto c = group.open(rank, 0, /*timeout_seconds=*/0.2);
    std::vector<Bytes> out(2);
    c->all_to_all({.tag = "dispatch", .layer = 2}, out);
  });
  EXPECT_EQ(
      errors[0],
      "rank 0 of 2 stopped in step 0: rank 1 has not sent its part of \"dispatch\" of layer 2 "
      "for 0 seconds");
}

// A rank that waits on one channel is not stuck while the other one makes progress.
TEST(Communicator, ProgressElsewhereKeepsAWaitAlive) {
  ThreadGroup group(2);
  const auto errors = ThreadGroup::run(2, [&](int rank) {
    const auto votes = group.open(rank, 0, /*timeout_seconds=*/1);
    const auto data = group.open(rank, 1, /*timeout_seconds=*/1);
    const auto work = [&] {
      for (int i = 0; i < 24; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(60));
        data->barrier("data", 5);
      }
    };
    if (rank == 0) {
      std::thread other(work);
      std::vector<Bytes> out(2);
      votes->all_to_all({.tag = "vote"}, out);
      other.join();
    } else {
      work();  // votes only when the work is done
      std::vector<Bytes> out(2);
      votes->all_to_all({.tag = "vote"}, out);
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(Communicator, OneRankNeedsNobody) {
  Communicator c(std::make_unique<SingleTransport>(), std::make_shared<LastArrival>(0), {});
  std::vector<Bytes> out = {bytes_of("mine")};
  EXPECT_EQ(text(c.all_to_all({.tag = "x"}, out)[0]), "mine");
  std::vector<float> values = {1.5f};
  c.all_reduce_sum({.tag = "y"}, values);
  EXPECT_EQ(values[0], 1.5f);
  c.barrier("z", 1);
}

}  // namespace
}  // namespace peregrine::test
