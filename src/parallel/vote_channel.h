// Votes over a communicator of their own, beside the one that carries rows: a vote on the next step
// overlaps with the step that runs. What ranks have to tell each other may ride on them.
#pragma once

#include <memory>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/request_mail.h"
#include "parallel/voting.h"

namespace peregrine {

class VoteChannel : public VoteExchange {
 public:
  // `mail`, which must outlive this, rides on every vote; null: none. All ranks or none have it.
  explicit VoteChannel(std::unique_ptr<Communicator> communicator, VoteMail* mail = nullptr)
      : communicator_(std::move(communicator)),
        mail_(mail),
        outgoing_(static_cast<size_t>(communicator_->ranks())) {}

  std::span<const uint8_t> exchange(uint8_t mine) override {
    communicator_->set_step(++votes_);
    for (int peer = 0; peer < communicator_->ranks(); ++peer) {
      Bytes& message = outgoing_[static_cast<size_t>(peer)];
      message.assign(1, static_cast<std::byte>(mine));
      if (mail_ && peer != communicator_->rank()) mail_->pack(peer, message);
    }
    const auto all = communicator_->all_to_all({.tag = "vote"}, outgoing_);
    bytes_.clear();
    for (const Bytes& vote : all) bytes_.push_back(static_cast<uint8_t>(vote.at(0)));
    // Empty mail is handed on too: what came before may have waited for its reader.
    for (int peer = 0; mail_ && peer < communicator_->ranks(); ++peer)
      if (peer != communicator_->rank())
        mail_->unpack(peer, std::span(all[static_cast<size_t>(peer)]).subspan(1));
    return bytes_;
  }

 private:
  const std::unique_ptr<Communicator> communicator_;
  VoteMail* const mail_;
  std::vector<Bytes> outgoing_;
  int64_t votes_ = 0;
  std::vector<uint8_t> bytes_;
};

}  // namespace peregrine
