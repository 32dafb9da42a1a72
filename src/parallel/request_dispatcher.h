// Rank 0's side of a server on several ranks: gives each request to the rank with the fewest, and
// hands on the events that come back.
//
// A request goes out with the next vote, and its events come with later ones; both on the engine's
// thread, so that callbacks are called as for a request that runs here. `accept` is asked here: a
// request that it ends is cancelled on the other rank, which may have run a step or two more.
//
// What is bound to this process stays on this rank: requests with the state of a conversation or a
// form for their answer.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/step_group.h"
#include "parallel/request_mail.h"

namespace peregrine {

class RequestDispatcher : public RequestCourier, public VoteMail {
 public:
  // Ranks 0 .. takers - 1 take requests; all `ranks` are told to stop.
  RequestDispatcher(int ranks, int takers);
  ~RequestDispatcher() override;

  bool send(std::unique_ptr<Sequence>& sequence, int requests_here) override;
  bool cancel(RequestId id) override;
  void cancel_all() override;
  int take_ended() override;
  bool idle() const override { return elsewhere_.empty(); }
  void stop() override;
  std::vector<EngineStats> others() const override;

  void pack(int peer, Bytes& message) override;
  void unpack(int peer, std::span<const std::byte> bytes) override;

 private:
  struct Elsewhere {
    std::unique_ptr<Sequence> sequence;
    int rank = 0;
  };

  void hand_on(RequestId id, const MailEvent& event);

  const int takers_;
  std::vector<MailStream> mail_;  // by rank
  std::vector<int> given_;        // by rank: requests that have not ended
  int last_ = 0;                  // rank that got the last request
  std::map<RequestId, Elsewhere> elsewhere_;
  int ended_ = 0;
  bool stopped_ = false;

  mutable std::mutex mutex_;
  std::vector<EngineStats> stats_;  // by rank
};

}  // namespace peregrine
