// Many processes claim at once: of the claims on one version exactly one wins, and no claim is
// lost. PEREGRINE_CLAIMS sets the number of claims, 10,000 by default.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>

#include "kvshare/redis_directory.h"
#include "kvshare/redis_server.h"

namespace peregrine::test {
namespace {

struct Win {
  int key;
  uint64_t seen;  // the version that the claim showed
};

// What one process does; returns the claims it won.
std::vector<Win> claim_many(const RedisAddress& address, int process, int claims) {
  RedisDirectory directory({.address = address,
                            .owner = "process" + std::to_string(process),
                            .limit = std::chrono::milliseconds(60000),
                            .alive = std::chrono::milliseconds(60000),
                            .notices = {}});
  std::vector<Win> wins;
  for (int i = 0; i < claims; ++i) {
    // Half of them on one key of all processes, the others on four more.
    const int key = i % 2 == 0 ? 0 : 1 + i / 2 % 4;
    const auto seen = directory.look_up(std::to_string(key));
    if (!seen) _exit(2);
    const DirectoryClaim claim = directory.claim(std::to_string(key), seen->version);
    if (claim.outcome == DirectoryOutcome::kUnavailable) _exit(3);
    if (claim.outcome != DirectoryOutcome::kDone) continue;
    if (claim.version.sequence != seen->version.sequence + 1) _exit(5);
    wins.push_back({key, seen->version.sequence});
  }
  return wins;
}

TEST(DirectoryClaims, OfManyProcessesHaveOneWinnerAVersion) {
  constexpr int kProcesses = 8;
  const char* wanted = std::getenv("PEREGRINE_CLAIMS");
  const int claims = (wanted ? std::atoi(wanted) : 10000) / kProcesses;
  RedisServer server;
  std::vector<std::pair<pid_t, int>> children;
  for (int process = 0; process < kProcesses; ++process) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const std::vector<Win> wins = claim_many(server.address(), process, claims);
      const auto* at = reinterpret_cast<const char*>(wins.data());
      for (size_t left = wins.size() * sizeof(Win); left > 0;) {
        const ssize_t written = write(ends[1], at, left);
        if (written <= 0) _exit(4);
        at += written;
        left -= static_cast<size_t>(written);
      }
      _exit(0);
    }
    close(ends[1]);
    children.emplace_back(child, ends[0]);
  }
  std::map<int, std::set<uint64_t>> won;
  int wins = 0;
  for (const auto& [child, from] : children) {
    Win win;
    while (read(from, &win, sizeof(win)) == sizeof(win)) {
      EXPECT_TRUE(won[win.key].insert(win.seen).second)
          << "two claims on version " << win.seen << " of key " << win.key << " won";
      ++wins;
    }
    close(from);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  RedisDirectory directory({.address = server.address(),
                            .owner = "judge",
                            .limit = std::chrono::milliseconds(60000),
                            .notices = {}});
  for (const auto& [key, sequences] : won) {
    const auto record = directory.look_up(std::to_string(key));
    ASSERT_TRUE(record);
    EXPECT_EQ(record->version.sequence, sequences.size()) << "a claim of key " << key << " is lost";
    EXPECT_EQ(*sequences.rbegin(), sequences.size() - 1);
  }
  EXPECT_EQ(won.size(), 5u);
  std::printf("%d of %d claims won, the others were stale\n", wins, claims * kProcesses);
}

}  // namespace
}  // namespace peregrine::test
