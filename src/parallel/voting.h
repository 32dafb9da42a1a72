// The vote of a group of ranks on its next step (spec: parallel.md, "All ranks of a group step
// alike").
//
// A round is: vote on what every rank wishes, plan, and, where the vote was for prefill, confirm
// that some rank planned prompt rows. Two rules trigger prefill, each with a minimum interval since
// the last trigger, counted in rounds:
//   ALL  every rank has a prompt to read: nobody waits for anybody, so the interval is short;
//   ANY  some rank has one: the others are held up, so the interval is longer.
// A trigger counts even when nothing could be planned, so that a group short of pages does not
// flap.
//
// A pure state machine: it sees only the exchanged votes, hence all ranks reach the same decision.
// Idle rounds count too, so a prompt that waits on one rank is tried after at most `any_interval`
// rounds, whatever the others do.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/step_group.h"

namespace peregrine {

struct VotingOptions {
  int all_interval = 1;  // rounds between triggers by ALL, at least 1
  int any_interval = 4;  // by ANY, at least all_interval
};

// Sends one byte to every rank of the group and returns the bytes of all, by rank.
class VoteExchange {
 public:
  virtual ~VoteExchange() = default;
  virtual std::span<const uint8_t> exchange(uint8_t mine) = 0;
};

class Voting : public StepGroup {
 public:
  enum class Trigger { kNone, kAll, kAny };

  // Throws Error(kInvalidArgument) for intervals out of range. `exchange` and `courier`, which may
  // be null, must outlive this object.
  Voting(VoteExchange& exchange, const VotingOptions& options, RequestCourier* courier = nullptr);

  RequestCourier* courier() override { return courier_; }

  StepKind vote(const StepWish& mine) override;
  StepKind confirm(bool planned) override;

  int64_t rounds() const { return round_; }
  Trigger trigger() const { return trigger_; }  // of the last vote

 private:
  VoteExchange& exchange_;
  const VotingOptions options_;
  RequestCourier* const courier_;
  int64_t round_ = 0;         // votes so far
  int64_t last_trigger_ = 0;  // round of the last one
  Trigger trigger_ = Trigger::kNone;
  bool any_decode_ = false;  // in the last vote
};

}  // namespace peregrine
