// Votes over a communicator of their own, beside the one that carries rows: a vote on the next step
// overlaps with the step that runs.
#pragma once

#include <memory>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/voting.h"

namespace peregrine {

class VoteChannel : public VoteExchange {
 public:
  explicit VoteChannel(std::unique_ptr<Communicator> communicator)
      : communicator_(std::move(communicator)) {}

  std::span<const uint8_t> exchange(uint8_t mine) override {
    communicator_->set_step(++votes_);
    const auto all = communicator_->all_gather({.tag = "vote"}, std::as_bytes(std::span(&mine, 1)));
    bytes_.clear();
    for (const Bytes& vote : all) bytes_.push_back(static_cast<uint8_t>(vote.at(0)));
    return bytes_;
  }

 private:
  const std::unique_ptr<Communicator> communicator_;
  int64_t votes_ = 0;
  std::vector<uint8_t> bytes_;
};

}  // namespace peregrine
