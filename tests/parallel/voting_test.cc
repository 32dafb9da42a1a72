// Groups of simulated ranks that vote on every step: random arrivals, page shortages and slot
// limits. Each rank is a thread with its own Voting; votes meet at a barrier.
#include "parallel/voting.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <barrier>
#include <deque>
#include <random>
#include <thread>

#include "peregrine/error.h"

namespace peregrine::test {
namespace {

using Trigger = Voting::Trigger;

class Meeting {
 public:
  explicit Meeting(int ranks) : bytes_(static_cast<size_t>(ranks)), barrier_(ranks) {}

  std::vector<uint8_t> all_gather(int rank, uint8_t mine) {
    bytes_[static_cast<size_t>(rank)] = mine;
    barrier_.arrive_and_wait();
    std::vector<uint8_t> all = bytes_;
    barrier_.arrive_and_wait();  // nobody writes before everybody has read
    return all;
  }

 private:
  std::vector<uint8_t> bytes_;
  std::barrier<> barrier_;
};

class MeetingExchange : public VoteExchange {
 public:
  MeetingExchange(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}
  std::span<const uint8_t> exchange(uint8_t mine) override {
    return votes_ = meeting_.all_gather(rank_, mine);
  }

 private:
  Meeting& meeting_;
  int rank_;
  std::vector<uint8_t> votes_;
};

struct Request {
  int arrives = 0;  // round
  int pages = 0;    // held while it runs
  int tokens = 0;   // decode steps
};

struct Workload {
  std::vector<Request> requests;  // by arrival
  int pages = 0, slots = 0;
};

struct Round {
  StepWish wish;
  Trigger trigger;
  StepKind voted, ran;
  bool planned = false;
  int waiting = 0;
};

// What one rank does until the group stops; gives up after `limit` rounds.
std::vector<Round> run_rank(Voting& voting, const Workload& work, int limit) {
  std::vector<Round> log;
  std::deque<Request> waiting;
  std::vector<Request> running;
  size_t next = 0;
  int pages = work.pages;
  for (int round = 0; round < limit; ++round) {
    while (next < work.requests.size() && work.requests[next].arrives <= round)
      waiting.push_back(work.requests[next++]);
    Round r;
    r.waiting = static_cast<int>(waiting.size());
    r.wish = {.prefill = !waiting.empty(),
              .decode = !running.empty(),
              .done = next == work.requests.size() && waiting.empty() && running.empty()};
    r.voted = r.ran = voting.vote(r.wish);
    r.trigger = voting.trigger();
    if (r.voted == StepKind::kPrefill) {
      const bool room = !waiting.empty() && static_cast<int>(running.size()) < work.slots &&
                        waiting.front().pages <= pages;
      r.planned = room;
      r.ran = voting.confirm(room);
    }
    log.push_back(r);
    if (r.ran == StepKind::kStop) break;
    if (r.ran == StepKind::kIdle || r.ran == StepKind::kWait) continue;
    // Decoding goes on in both kinds of step.
    for (Request& q : running) --q.tokens;
    std::erase_if(running, [&](const Request& q) {
      if (q.tokens == 0) pages += q.pages;
      return q.tokens == 0;
    });
    if (r.planned) {
      pages -= waiting.front().pages;
      running.push_back(waiting.front());
      waiting.pop_front();
    }
  }
  return log;
}

std::vector<std::vector<Round>> run_group(const std::vector<Workload>& work,
                                          const VotingOptions& options, int limit) {
  const auto ranks = static_cast<int>(work.size());
  Meeting meeting(ranks);
  std::vector<std::vector<Round>> logs(work.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      MeetingExchange exchange(meeting, rank);
      Voting voting(exchange, options);
      logs[static_cast<size_t>(rank)] = run_rank(voting, work[static_cast<size_t>(rank)], limit);
    });
  for (std::thread& thread : threads) thread.join();
  return logs;
}

Workload random_workload(std::mt19937& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  Workload work{.requests = {}, .pages = 2 + below(8), .slots = 1 + below(4)};
  int round = 0;
  for (int n = below(12); n > 0; --n) {
    round += below(2) == 0 ? 0 : below(20);
    work.requests.push_back(
        {.arrives = round, .pages = 1 + below(work.pages), .tokens = 1 + below(15)});
  }
  return work;
}

TEST(Voting, RanksStepAlikeWhateverArrives) {
  const bool holds = rc::check("alike, no starvation, no livelock, intervals kept", [] {
    std::mt19937 random(*rc::gen::arbitrary<uint32_t>());
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
    VotingOptions options;
    options.all_interval = 1 + below(3);
    options.any_interval = options.all_interval + below(6);
    std::vector<Workload> work;
    int bound = options.any_interval + 2;
    for (int ranks = 2 + below(7); ranks > 0; --ranks) {
      work.push_back(random_workload(random));
      // Every request waits at most for an interval, for those before it, and decodes.
      for (const Request& q : work.back().requests)
        bound += q.tokens + 2 * options.any_interval + 20;
    }
    const auto logs = run_group(work, options, bound);

    const size_t rounds = logs[0].size();
    RC_ASSERT(logs[0].back().ran == StepKind::kStop);  // everything ended: no livelock
    int last_trigger = -options.any_interval;
    std::vector<int> waiting_since(work.size(), -1);
    for (size_t i = 0; i < rounds; ++i) {
      const Round& first = logs[0][i];
      bool all_wish = true, any_wish = false, any_planned = false, any_decode = false;
      for (const auto& log : logs) {
        RC_ASSERT(log.size() == rounds);
        RC_ASSERT(log[i].voted == first.voted && log[i].ran == first.ran);
        RC_ASSERT(log[i].trigger == first.trigger);
        all_wish = all_wish && log[i].wish.prefill;
        any_wish = any_wish || log[i].wish.prefill;
        any_planned = any_planned || log[i].planned;
        any_decode = any_decode || log[i].wish.decode;
      }
      const int since = static_cast<int>(i) - last_trigger;
      if (first.trigger == Trigger::kAll) RC_ASSERT(all_wish && since >= options.all_interval);
      if (first.trigger == Trigger::kAny) RC_ASSERT(any_wish && since >= options.any_interval);
      if (first.trigger != Trigger::kNone) last_trigger = static_cast<int>(i);
      if (first.trigger == Trigger::kNone) RC_ASSERT(first.ran != StepKind::kPrefill);
      RC_ASSERT((first.ran == StepKind::kPrefill) == any_planned);
      if (first.ran != StepKind::kPrefill && first.ran != StepKind::kStop)
        RC_ASSERT((first.ran == StepKind::kDecode) == any_decode);
      if (first.ran == StepKind::kIdle) RC_ASSERT(!any_wish);
      // Whoever waits is tried within the interval of ANY.
      for (size_t rank = 0; rank < logs.size(); ++rank) {
        int& since_round = waiting_since[rank];
        if (!logs[rank][i].wish.prefill || first.trigger != Trigger::kNone) {
          since_round = -1;
        } else {
          if (since_round < 0) since_round = static_cast<int>(i);
          RC_ASSERT(static_cast<int>(i) - since_round < options.any_interval);
        }
      }
    }
  });
  EXPECT_TRUE(holds);
}

// One rank alone decides as a group of one would.
class Alone : public VoteExchange {
 public:
  std::span<const uint8_t> exchange(uint8_t mine) override {
    byte_ = mine;
    return {&byte_, 1};
  }

 private:
  uint8_t byte_ = 0;
};

TEST(Voting, ReturnsToDecodingWhenNothingCouldBePlanned) {
  Alone exchange;
  Voting voting(exchange, {.all_interval = 2, .any_interval = 3});
  const StepWish both{.prefill = true, .decode = true};
  EXPECT_EQ(voting.vote(both), StepKind::kPrefill);
  EXPECT_EQ(voting.confirm(false), StepKind::kDecode);
  EXPECT_EQ(voting.vote(both), StepKind::kDecode) << "the failed attempt counts as a trigger";
  EXPECT_EQ(voting.vote(both), StepKind::kPrefill);
  EXPECT_EQ(voting.confirm(true), StepKind::kPrefill);
  EXPECT_EQ(voting.vote({}), StepKind::kIdle);
  EXPECT_EQ(voting.vote({.done = true}), StepKind::kStop);
}

TEST(Voting, RefusesIntervalsThatCannotBe) {
  Alone exchange;
  EXPECT_THROW(Voting(exchange, {.all_interval = 0, .any_interval = 1}), Error);
  EXPECT_THROW(Voting(exchange, {.all_interval = 3, .any_interval = 2}), Error);
}

}  // namespace
}  // namespace peregrine::test
