// Collectives between the ranks of a group, checked on receipt and bounded in time.
//
// A collective is one message to every other rank. Each message carries the collective's tag,
// layer, shape and number, and the receiver compares them with its own: ranks that have lost step
// end in a sentence, never in mixed-up data. Sums add in rank order, so results are the same in
// every run with the same number of ranks.
//
// While a rank waits it watches the others. One that has died, or a group from which nothing has
// arrived for `timeout_seconds`, ends the group: on_failure is called with a sentence that names
// rank and step, then Error(kUnavailable) is thrown. Used by one thread at a time; a thread of its
// own needs a communicator of its own (RankGroup makes them).
//
// The transport moves messages: SingleTransport for one rank, MpiTransport (mpi_group.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace peregrine {

using Bytes = std::vector<std::byte>;

// Point-to-point messages between ranks, in order per pair of ranks. Never blocks.
class RankTransport {
 public:
  virtual ~RankTransport() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  // Begins to send; `message` stays untouched until flushed() is true.
  virtual void send(int peer, std::span<const std::byte> message) = 0;
  virtual int sending_to() = 0;  // the peer of a send that is not complete, or -1
  bool flushed() { return sending_to() < 0; }
  // The next message of `peer`, if one has arrived.
  virtual bool receive(int peer, Bytes& message) = 0;
  virtual bool alive(int peer) = 0;  // false once the peer's process is known to be gone
};

class SingleTransport : public RankTransport {
 public:
  int rank() const override { return 0; }
  int ranks() const override { return 1; }
  void send(int, std::span<const std::byte>) override {}
  int sending_to() override { return -1; }
  bool receive(int, Bytes&) override { return false; }
  bool alive(int) override { return true; }
};

// Names one collective call. All ranks must pass equal values.
struct Collective {
  const char* tag = "";  // at most 23 characters
  int layer = -1;        // -1: none
  uint64_t shape = 0;    // whatever else must agree, such as a width
};

// When a message last arrived at this process, over all communicators of the group: a rank that
// waits in one while another makes progress is not stuck.
using LastArrival = std::atomic<double>;  // seconds on the steady clock

struct CommunicatorOptions {
  double timeout_seconds = 8;
  std::function<void(const std::string& sentence)> on_failure;  // may end the process
};

class Communicator {
 public:
  Communicator(std::unique_ptr<RankTransport> transport, std::shared_ptr<LastArrival> arrival,
               const CommunicatorOptions& options);

  int rank() const { return transport_->rank(); }
  int ranks() const { return transport_->ranks(); }
  void set_step(int64_t step) { step_.store(step, std::memory_order_relaxed); }  // for sentences
  int64_t step() const { return step_.load(std::memory_order_relaxed); }         // by any thread

  // Sends outgoing[r] to rank r and returns what each rank sent here; what a rank sends itself
  // comes back as it is. The result is valid until the next call.
  std::span<const Bytes> all_to_all(const Collective& what, std::span<Bytes> outgoing);

  // The bytes of all ranks, by rank.
  std::span<const Bytes> all_gather(const Collective& what, std::span<const std::byte> mine);

  // The bytes of rank `root`, whose `mine` alone counts. The others wait for nobody else; `root`
  // waits for no one.
  std::span<const std::byte> broadcast(const Collective& what, int root,
                                       std::span<const std::byte> mine);

  // values[i] becomes the sum over ranks of values[i], added in rank order.
  void all_reduce_sum(const Collective& what, std::span<float> values);

  // Returns when all ranks have called it. Ranks may come `patience_seconds` apart.
  void barrier(const char* tag, double patience_seconds);

  // Ends the group with a sentence from this rank's point of view.
  [[noreturn]] void stop_group(const std::string& why);

 private:
  struct Header;
  Bytes& begin_message(int peer, const Collective& what, size_t bytes);
  static constexpr int kAll = -1;
  void exchange(const Collective& what, double patience_seconds, int root = kAll);
  void check(const Header& header, int peer, const Collective& what);
  void watch(const Collective& what, double waiting_since, double patience_seconds);

  const std::unique_ptr<RankTransport> transport_;
  const std::shared_ptr<LastArrival> arrival_;
  const CommunicatorOptions options_;
  std::atomic<int64_t> step_ = 0;
  uint64_t number_ = 0;          // of collectives so far
  std::vector<Bytes> messages_;  // out, by peer
  std::vector<Bytes> arrived_;   // in, by peer: payloads
  std::vector<bool> has_arrived_;
};

}  // namespace peregrine
