// Ranks that load a model, watched by each other until all have loaded.
//
// Loading has no collectives, and it may take minutes on one rank and seconds on another. So a
// thread of each rank sends the others a sign of life several times per timeout, with the bytes
// read so far, and looks for theirs: a rank that has died, stopped or lost its network ends the
// group within the same timeout as between steps.
//
// Uses a transport of its own. A disk that does not answer holds up the loading thread and not this
// one: that is waited for.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "parallel/communicator.h"

namespace peregrine {

class LoadingWatch {
 public:
  // Begins to send and to watch. `options.on_failure` is called, once and on another thread, with a
  // sentence that names the rank.
  LoadingWatch(std::unique_ptr<RankTransport> transport, const CommunicatorOptions& options);
  ~LoadingWatch();  // ends the thread, whether or not the others have loaded

  void progress(uint64_t bytes) { bytes_ = bytes; }
  // This rank has loaded: returns when all have. Throws Error(kUnavailable) when one cannot.
  void wait_for_all();

 private:
  struct Peer {
    double last_sign = 0;  // seconds
    uint64_t bytes = 0;
    bool loaded = false;
  };

  void watch(const std::stop_token& stop);
  void send_sign(bool loaded);
  bool take_signs();  // whether all have loaded
  void check(double now);

  const std::unique_ptr<RankTransport> transport_;
  const CommunicatorOptions options_;
  std::atomic<uint64_t> bytes_{0};
  std::atomic<bool> loaded_{false};
  std::string failure_;      // of the thread
  std::vector<Peer> peers_;  // by rank
  Bytes sign_;
  std::jthread thread_;  // last: ends before what it uses
};

}  // namespace peregrine
