// The side of a server's other ranks: runs the requests that rank 0 gives this one, and sends their
// events back (request_dispatcher.h).
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>

#include "parallel/request_mail.h"

namespace peregrine {

class RequestWorker : public VoteMail {
 public:
  // Runs requests on the engine until rank 0 says that none will come and has cancelled what still
  // runs. The engine votes with this as its mail and must end before it.
  void serve(Engine& engine);

  void pack(int peer, Bytes& message) override;
  void unpack(int peer, std::span<const std::byte> bytes) override;

 private:
  void take(const MailRecord& record, Engine& engine);
  void submit(const MailRecord& record, Engine& engine);

  MailStream mail_;                     // to and from rank 0
  std::map<RequestId, RequestId> ids_;  // rank 0's to the engine's
  double stats_sent_us_ = 0;
  std::atomic<Engine*> engine_{nullptr};
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopped_ = false;
};

}  // namespace peregrine
