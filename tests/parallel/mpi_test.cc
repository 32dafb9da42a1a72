// Ranks as processes under mpirun: this program starts itself. A DISABLED_ test is the body of one
// rank and is run by the test before it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "parallel/rank_group.h"

namespace peregrine::test {
namespace {

struct Outcome {
  int code = -1;
  std::string text;  // standard output and error of all ranks
};

#ifdef PEREGRINE_MPI
constexpr bool kHaveMpi = true;
#else
constexpr bool kHaveMpi = false;
#endif

Outcome run_ranks(int ranks, const std::string& body) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command = fmt::format(
      "mpirun --allow-run-as-root --oversubscribe --mca btl_vader_single_copy_mechanism none "
      "-n {} {} --gtest_also_run_disabled_tests --gtest_filter=MpiRank.DISABLED_{} 2>&1",
      ranks, self, body);
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  char piece[4096];
  while (const size_t got = fread(piece, 1, sizeof(piece), pipe)) outcome.text.append(piece, got);
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

CommunicatorOptions exiting(double timeout_seconds) {
  return {.timeout_seconds = timeout_seconds, .on_failure = [](const std::string& sentence) {
            fprintf(stderr, "%s\n", sentence.c_str());
            _exit(1);
          }};
}

// Every rank sums its number and large parts travel both ways at once.
TEST(MpiRank, DISABLED_Collectives) {
  const auto group = join_ranks();
  const auto c = group->open(exiting(8));
  const auto other = group->open(exiting(8));
  std::thread second([&] {
    for (int i = 0; i < 200; ++i) other->barrier("second thread", 8);
  });
  for (int round = 0; round < 100; ++round) {
    std::vector<float> values(1000, static_cast<float>(c->rank() + round));
    c->all_reduce_sum({.tag = "sum", .shape = 1000}, values);
    const int n = c->ranks();
    ASSERT_EQ(values[999], static_cast<float>(n * round + n * (n - 1) / 2));
    std::vector<Bytes> out(static_cast<size_t>(n));
    for (int to = 0; to < n; ++to)
      out[static_cast<size_t>(to)].assign(static_cast<size_t>(20000 * (to + 1)),
                                          static_cast<std::byte>(c->rank() + 16 * to));
    const auto in = c->all_to_all({.tag = "parts", .layer = round}, out);
    for (int from = 0; from < n; ++from) {
      ASSERT_EQ(in[static_cast<size_t>(from)].size(), 20000u * static_cast<size_t>(c->rank() + 1));
      ASSERT_EQ(in[static_cast<size_t>(from)].back(),
                static_cast<std::byte>(from + 16 * c->rank()));
    }
  }
  second.join();
  c->barrier("end", 8);
}

TEST(Mpi, CollectivesWorkBetweenProcessesAndThreads) {
  if (!kHaveMpi) GTEST_SKIP() << "built without MPI";
  for (const int ranks : {2, 4}) {
    const Outcome outcome = run_ranks(ranks, "Collectives");
    EXPECT_EQ(outcome.code, 0) << outcome.text;
  }
}

// Rank 1 stops answering in step 3, in one of several ways.
void fall_silent(void (*way)()) {
  const auto group = join_ranks();
  const auto c = group->open(exiting(1));
  for (int step = 0; step < 10; ++step) {
    c->set_step(step);
    if (step == 3 && c->rank() == 1) way();
    std::vector<Bytes> out(static_cast<size_t>(c->ranks()));
    c->all_to_all({.tag = "dispatch", .layer = 5}, out);
  }
}

TEST(MpiRank, DISABLED_Killed) {
  signal(SIGTERM, SIG_IGN);  // mpirun ends the ranks that are left; they have a word to say first
  fall_silent([] { ::kill(getpid(), SIGKILL); });
}
TEST(MpiRank, DISABLED_Stopped) {
  fall_silent([] { std::this_thread::sleep_for(std::chrono::seconds(60)); });
}

TEST(Mpi, KilledRankIsNamedByTheOthers) {
  if (!kHaveMpi) GTEST_SKIP() << "built without MPI";
  const Outcome outcome = run_ranks(3, "Killed");
  EXPECT_NE(outcome.code, 0);
  for (const int rank : {0, 2})
    EXPECT_NE(outcome.text.find(fmt::format(
                  "rank {} of 3 stopped in step 3: rank 1 has died, its part of \"dispatch\" of "
                  "layer 5 is missing",
                  rank)),
              std::string::npos)
        << outcome.text;
}

TEST(Mpi, SilentRankIsNamedByTheOthers) {
  if (!kHaveMpi) GTEST_SKIP() << "built without MPI";
  const Outcome outcome = run_ranks(2, "Stopped");
  EXPECT_NE(outcome.code, 0);
  EXPECT_NE(outcome.text.find("rank 0 of 2 stopped in step 3: rank 1 has not sent its part of "
                              "\"dispatch\" of layer 5 for 1 seconds"),
            std::string::npos)
      << outcome.text;
}

}  // namespace
}  // namespace peregrine::test
