// Every interleaving of the claim protocol's steps, with everything that can happen between them.
//
// Three servers take turns of one conversation: look up, claim with what was seen, check. Between
// any two steps an owner may die, the record may expire, or the directory may restart empty. The
// book (which says what Redis says, see directory_test.cc) is copied at every branch, so that all
// orders are explored.
#include <gtest/gtest.h>

#include <array>
#include <optional>

#include "kvshare/directory_book.h"

namespace peregrine {
namespace {

constexpr int kServers = 3;
constexpr double kAlive = 10;  // seconds after a heartbeat
constexpr const char* kKey = "k";

struct Server {
  int step = 0;  // 0 look up, 1 claim, 2 check, 3 done
  bool dead = false;
  DirectoryVersion seen, claimed;
};

// What the world looks like besides the book, kept independently of it.
struct Truth {
  int epoch = 0;
  uint64_t sequence = 0;  // of the record; 0: none
  int owner = -1;
  int claims = 0;                       // successes and losses of the record since the start:
  std::array<int, kServers> seen_at{};  // `claims` when the server looked up
};

struct World {
  DirectoryBook book{"epoch0"};
  Truth truth;
  std::array<Server, kServers> servers;
  double now = 0;
  int deaths = 1, expiries = 1, restarts = 1;  // that may still happen
};

int explored = 0;

std::string epoch_name(int epoch) { return "epoch" + std::to_string(epoch); }
std::string owner_name(int server) { return "server" + std::to_string(server); }

bool owner_lives(const World& w) {
  return w.truth.owner >= 0 && !w.servers[static_cast<size_t>(w.truth.owner)].dead;
}

void beat_living(World& w) {
  for (int i = 0; i < kServers; ++i)
    if (!w.servers[static_cast<size_t>(i)].dead) w.book.beat(owner_name(i), kAlive, w.now);
}

void step_server(World& w, int index) {
  Server& s = w.servers[static_cast<size_t>(index)];
  Truth& t = w.truth;
  const int at = s.step++;
  if (at == 0) {
    const DirectoryRecord record = w.book.look_up(kKey, w.now);
    ASSERT_EQ(record.version, (DirectoryVersion{epoch_name(t.epoch), t.sequence}));
    ASSERT_EQ(record.owner, owner_lives(w) ? owner_name(t.owner) : "") << "an owner that is dead";
    s.seen = record.version;
    t.seen_at[static_cast<size_t>(index)] = t.claims;
  } else if (at == 1) {
    const DirectoryClaim claim = w.book.claim(kKey, s.seen, owner_name(index), kAlive, w.now);
    const bool untouched = t.seen_at[static_cast<size_t>(index)] == t.claims;
    // Exactly the claims on an untouched version win: one winner a version, no lost update.
    ASSERT_EQ(claim.outcome == DirectoryOutcome::kDone, untouched);
    if (claim.outcome != DirectoryOutcome::kDone) {
      s.step = 3;  // STALE: its state is not announced
      return;
    }
    ASSERT_EQ(claim.version, (DirectoryVersion{s.seen.epoch, s.seen.sequence + 1}));
    s.claimed = claim.version;
    ++t.sequence;
    ++t.claims;
    t.owner = index;
  } else {
    const bool current = owner_lives(w) && t.owner == index &&
                         s.claimed == DirectoryVersion{epoch_name(t.epoch), t.sequence};
    ASSERT_EQ(w.book.check(kKey, s.claimed, w.now),
              current ? DirectoryOutcome::kDone : DirectoryOutcome::kStale);
  }
}

void explore(const World& w) {
  if (::testing::Test::HasFatalFailure()) return;
  ++explored;
  for (int i = 0; i < kServers; ++i) {
    const Server& s = w.servers[static_cast<size_t>(i)];
    if (s.dead || s.step > 2) continue;
    World next = w;
    step_server(next, i);
    explore(next);
    if (w.deaths == 0) continue;
    next = w;  // kill -9: no heartbeat any more, and time passes until that shows
    --next.deaths;
    next.servers[static_cast<size_t>(i)].dead = true;
    next.now += kAlive + 1;
    beat_living(next);
    explore(next);
  }
  if (w.expiries > 0 && w.truth.sequence > 0) {
    World next = w;
    --next.expiries;
    next.now += static_cast<double>(kRecordExpirySeconds) + 1;
    beat_living(next);
    next.truth.sequence = 0;
    next.truth.owner = -1;
    ++next.truth.claims;
    // A version begins again at 1 after a day without any access: nobody holds one that long.
    for (Server& s : next.servers)
      if (s.step < 3) s.step = 0;
    explore(next);
  }
  if (w.restarts > 0) {
    World next = w;
    --next.restarts;
    next.book.restart_empty(epoch_name(++next.truth.epoch));
    beat_living(next);
    next.truth.sequence = 0;
    next.truth.owner = -1;
    ++next.truth.claims;
    explore(next);
  }
}

TEST(DirectoryModel, EveryInterleavingKeepsTheRules) {
  World start;
  beat_living(start);
  explore(start);
  std::printf("%d states explored\n", explored);
  EXPECT_GT(explored, 10000);
}

}  // namespace
}  // namespace peregrine
