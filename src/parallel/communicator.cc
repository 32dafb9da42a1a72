#include "parallel/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cstring>

#include "base/fail.h"
#include "engine/device.h"

namespace peregrine {
namespace {

constexpr size_t kTagBytes = 24;
constexpr double kWatchSeconds = 0.05;  // between two looks at the other processes
constexpr double kHeldUpSeconds = 1;    // without a look: this process did not run
constexpr int kBusyPolls = 200;         // before a waiting rank gives its core away
constexpr useconds_t kSleepUs = 20;

std::string name_of(const char* tag, int layer) {
  return layer < 0 ? fmt::format("\"{}\"", tag) : fmt::format("\"{}\" of layer {}", tag, layer);
}

}  // namespace

struct Communicator::Header {
  char tag[kTagBytes];
  int32_t layer;
  int32_t unused;
  uint64_t shape;
  uint64_t number;
  int64_t step;
};

Communicator::Communicator(std::unique_ptr<RankTransport> transport,
                           std::shared_ptr<LastArrival> arrival, const CommunicatorOptions& options)
    : transport_(std::move(transport)),
      arrival_(std::move(arrival)),
      options_(options),
      messages_(static_cast<size_t>(ranks())),
      arrived_(static_cast<size_t>(ranks())),
      has_arrived_(static_cast<size_t>(ranks())) {}

// Room for a payload of `bytes` behind the header.
Bytes& Communicator::begin_message(int peer, const Collective& what, size_t bytes) {
  assert(std::strlen(what.tag) < kTagBytes);
  Header header = {};
  std::memcpy(header.tag, what.tag, std::min(std::strlen(what.tag), kTagBytes - 1));
  header.layer = what.layer;
  header.shape = what.shape;
  header.number = number_;
  header.step = step();
  Bytes& message = messages_[static_cast<size_t>(peer)];
  message.resize(sizeof(header) + bytes);
  std::memcpy(message.data(), &header, sizeof(header));
  return message;
}

std::span<const Bytes> Communicator::all_to_all(const Collective& what, std::span<Bytes> outgoing) {
  assert(outgoing.size() == messages_.size());
  for (int peer = 0; peer < ranks(); ++peer) {
    Bytes& payload = outgoing[static_cast<size_t>(peer)];
    if (peer == rank()) {
      arrived_[static_cast<size_t>(peer)].swap(payload);
      continue;
    }
    Bytes& message = begin_message(peer, what, payload.size());
    if (!payload.empty())
      std::memcpy(message.data() + sizeof(Header), payload.data(), payload.size());
  }
  exchange(what, options_.timeout_seconds);
  return arrived_;
}

std::span<const Bytes> Communicator::all_gather(const Collective& what,
                                                std::span<const std::byte> mine) {
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == rank()) {
      arrived_[static_cast<size_t>(peer)].assign(mine.begin(), mine.end());
      continue;
    }
    Bytes& message = begin_message(peer, what, mine.size());
    std::copy(mine.begin(), mine.end(), message.begin() + sizeof(Header));
  }
  exchange(what, options_.timeout_seconds);
  return arrived_;
}

std::span<const std::byte> Communicator::broadcast(const Collective& what, int root,
                                                   std::span<const std::byte> mine) {
  if (rank() == root) {
    arrived_[static_cast<size_t>(root)].assign(mine.begin(), mine.end());
    for (int peer = 0; peer < ranks(); ++peer) {
      if (peer == root) continue;
      Bytes& message = begin_message(peer, what, mine.size());
      std::copy(mine.begin(), mine.end(), message.begin() + sizeof(Header));
    }
  }
  exchange(what, options_.timeout_seconds, root);
  return arrived_[static_cast<size_t>(root)];
}

void Communicator::all_reduce_sum(const Collective& what, std::span<float> values) {
  const auto all = all_gather(what, std::as_bytes(values));
  std::fill(values.begin(), values.end(), 0.0f);
  for (const Bytes& bytes : all) {
    const auto* theirs = reinterpret_cast<const float*>(bytes.data());
    for (size_t i = 0; i < values.size(); ++i) values[i] += theirs[i];
  }
}

void Communicator::barrier(const char* tag, double patience_seconds) {
  const Collective what{.tag = tag};
  for (int peer = 0; peer < ranks(); ++peer)
    if (peer != rank()) begin_message(peer, what, 0);
  exchange(what, patience_seconds);
}

// Sends messages_ and waits for one message of every peer; with `root` only that one sends.
void Communicator::exchange(const Collective& what, double patience_seconds, int root) {
  const auto sends = [root](int sender) { return root == kAll || root == sender; };
  for (int peer = 0; peer < ranks(); ++peer) {
    const bool self = peer == rank();
    has_arrived_[static_cast<size_t>(peer)] = self || !sends(peer);
    if (!self && sends(rank())) transport_->send(peer, messages_[static_cast<size_t>(peer)]);
  }
  double begin = now_seconds(), last_look = begin;
  for (int64_t polls = 0;; ++polls) {
    bool complete = true;
    for (int peer = 0; peer < ranks(); ++peer) {
      if (has_arrived_[static_cast<size_t>(peer)]) continue;
      Bytes& message = arrived_[static_cast<size_t>(peer)];
      if (!transport_->receive(peer, message)) {
        complete = false;
        continue;
      }
      has_arrived_[static_cast<size_t>(peer)] = true;
      arrival_->store(now_seconds(), std::memory_order_relaxed);
      Header header;
      if (message.size() < sizeof(header))
        stop_group(fmt::format("rank {} sent {} bytes, expected a header of {}", peer,
                               message.size(), sizeof(header)));
      std::memcpy(&header, message.data(), sizeof(header));
      check(header, peer, what);
      message.erase(message.begin(), message.begin() + sizeof(header));
    }
    if (transport_->flushed() && complete) break;
    if (polls < kBusyPolls) continue;
    usleep(kSleepUs);
    if (const double now = now_seconds(); now >= last_look + kWatchSeconds) {
      // This process was held up itself, and perhaps the others with it: they get their time again.
      if (now > last_look + kHeldUpSeconds) begin = now;
      last_look = now;
      watch(what, begin, patience_seconds);
    }
  }
  ++number_;
}

void Communicator::check(const Header& header, int peer, const Collective& what) {
  if (std::strncmp(header.tag, what.tag, kTagBytes - 1) == 0 && header.layer == what.layer &&
      header.shape == what.shape && header.number == number_)
    return;
  stop_group(fmt::format(
      "collective {} is {} with shape {} here, but rank {} in its step {} is at {}, {} with shape "
      "{}",
      number_, name_of(what.tag, what.layer), what.shape, peer, header.step, header.number,
      name_of(header.tag, header.layer), header.shape));
}

// Looks at the ranks that are waited for.
void Communicator::watch(const Collective& what, double waiting_since, double patience_seconds) {
  std::string missing;
  for (int peer = 0; peer < ranks(); ++peer) {
    if (has_arrived_[static_cast<size_t>(peer)]) continue;
    if (!transport_->alive(peer))
      stop_group(fmt::format("rank {} has died, its part of {} is missing", peer,
                             name_of(what.tag, what.layer)));
    missing += fmt::format("{}{}", missing.empty() ? "" : ", ", peer);
  }
  const double since = std::max(waiting_since, arrival_->load(std::memory_order_relaxed));
  const bool patient = now_seconds() - since <= patience_seconds;
  if (!missing.empty()) {
    if (!patient)
      stop_group(fmt::format("rank {} has not sent its part of {} for {:.0f} seconds", missing,
                             name_of(what.tag, what.layer), patience_seconds));
    return;
  }
  // All parts are here, but a long one of this rank needs its receiver's help to leave.
  const int peer = transport_->sending_to();
  if (peer < 0) return;
  if (!transport_->alive(peer))
    stop_group(fmt::format("rank {} has died, this rank's part of {} was on its way to it", peer,
                           name_of(what.tag, what.layer)));
  if (!patient)
    stop_group(fmt::format("rank {} has not taken this rank's part of {} for {:.0f} seconds", peer,
                           name_of(what.tag, what.layer), patience_seconds));
}

void Communicator::stop_group(const std::string& why) {
  const std::string sentence =
      fmt::format("rank {} of {} stopped in step {}: {}", rank(), ranks(), step(), why);
  if (options_.on_failure) options_.on_failure(sentence);
  throw Error(ErrorKind::kUnavailable, sentence);
}

}  // namespace peregrine
