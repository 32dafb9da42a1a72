// Ranks as threads of one process: the transport that tests run groups over.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "parallel/communicator.h"

namespace peregrine::test {

class ThreadGroup {
 public:
  explicit ThreadGroup(int ranks) : ranks_(ranks), dead_(static_cast<size_t>(ranks)) {}

  int ranks() const { return ranks_; }
  void kill(int rank) { dead_[static_cast<size_t>(rank)] = true; }

  // One end of channel `channel`; the ends of all ranks are connected.
  std::unique_ptr<Communicator> open(int rank, int channel, double timeout_seconds = 8) {
    return std::make_unique<Communicator>(transport(rank, channel), arrival_,
                                          CommunicatorOptions{.timeout_seconds = timeout_seconds});
  }
  std::unique_ptr<RankTransport> transport(int rank, int channel) {
    return std::make_unique<End>(*this, rank, channel);
  }

  // Runs `body` once a rank; the sentence of each rank whose body threw, else empty.
  static std::vector<std::string> run(int ranks, const std::function<void(int rank)>& body) {
    std::vector<std::string> errors(static_cast<size_t>(ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        try {
          body(rank);
        } catch (const std::exception& error) {
          errors[static_cast<size_t>(rank)] = error.what();
        }
      });
    for (std::thread& thread : threads) thread.join();
    return errors;
  }

 private:
  class End : public RankTransport {
   public:
    End(ThreadGroup& group, int rank, int channel)
        : group_(group), rank_(rank), channel_(channel) {}
    int rank() const override { return rank_; }
    int ranks() const override { return group_.ranks_; }
    void send(int peer, std::span<const std::byte> message) override {
      const std::lock_guard lock(group_.mutex_);
      group_.box(rank_, peer, channel_).emplace_back(message.begin(), message.end());
    }
    int sending_to() override { return -1; }
    bool receive(int peer, Bytes& message) override {
      const std::lock_guard lock(group_.mutex_);
      auto& box = group_.box(peer, rank_, channel_);
      if (box.empty()) return false;
      message = std::move(box.front());
      box.pop_front();
      return true;
    }
    bool alive(int peer) override { return !group_.dead_[static_cast<size_t>(peer)]; }

   private:
    ThreadGroup& group_;
    int rank_, channel_;
  };

  std::deque<Bytes>& box(int from, int to, int channel) {
    const auto at = static_cast<size_t>((channel * ranks_ + from) * ranks_ + to);
    if (boxes_.size() <= at) boxes_.resize(at + 1);
    return boxes_[at];
  }

  const int ranks_;
  std::mutex mutex_;
  std::vector<std::deque<Bytes>> boxes_;
  std::vector<std::atomic<bool>> dead_;
  std::shared_ptr<LastArrival> arrival_ = std::make_shared<LastArrival>(0);
};

}  // namespace peregrine::test
