#include "parallel/voting.h"

#include <algorithm>

#include "base/fail.h"

namespace peregrine {
namespace {

constexpr uint8_t kPrefillBit = 1, kDecodeBit = 2, kDoneBit = 4;

bool all(std::span<const uint8_t> votes, uint8_t bit) {
  return std::all_of(votes.begin(), votes.end(), [bit](uint8_t v) { return (v & bit) != 0; });
}
bool any(std::span<const uint8_t> votes, uint8_t bit) {
  return std::any_of(votes.begin(), votes.end(), [bit](uint8_t v) { return (v & bit) != 0; });
}

}  // namespace

Voting::Voting(VoteExchange& exchange, const VotingOptions& options, RequestCourier* courier)
    : exchange_(exchange), options_(options), courier_(courier) {
  if (options.all_interval < 1 || options.any_interval < options.all_interval)
    fail(ErrorKind::kInvalidArgument,
         "prefill intervals of {} (all) and {} (any) rounds: expected 1 <= all <= any",
         options.all_interval, options.any_interval);
  last_trigger_ = -options.any_interval;  // the first prompt need not wait
}

StepKind Voting::vote(const StepWish& mine) {
  const auto votes = exchange_.exchange(static_cast<uint8_t>((mine.prefill ? kPrefillBit : 0) |
                                                             (mine.decode ? kDecodeBit : 0) |
                                                             (mine.done ? kDoneBit : 0)));
  ++round_;
  any_decode_ = any(votes, kDecodeBit);
  const int64_t since = round_ - last_trigger_;
  trigger_ = all(votes, kPrefillBit) && since >= options_.all_interval   ? Trigger::kAll
             : any(votes, kPrefillBit) && since >= options_.any_interval ? Trigger::kAny
                                                                         : Trigger::kNone;
  if (trigger_ != Trigger::kNone) {
    last_trigger_ = round_;
    return StepKind::kPrefill;
  }
  if (any_decode_) return StepKind::kDecode;
  if (any(votes, kPrefillBit)) return StepKind::kWait;
  return all(votes, kDoneBit) ? StepKind::kStop : StepKind::kIdle;
}

StepKind Voting::confirm(bool planned) {
  if (any(exchange_.exchange(planned ? kPrefillBit : 0), kPrefillBit)) return StepKind::kPrefill;
  return any_decode_ ? StepKind::kDecode : StepKind::kWait;
}

}  // namespace peregrine
