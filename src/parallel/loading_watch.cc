#include "parallel/loading_watch.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/fail.h"
#include "engine/device.h"

namespace peregrine {
namespace {

constexpr double kSignsPerTimeout = 8;
constexpr double kLongestPause = 0.5;  // seconds between signs
constexpr auto kPoll = std::chrono::milliseconds(5);
constexpr double kHeldUpSeconds = 1;  // between two looks: this process did not run

struct Sign {
  uint64_t bytes = 0;
  uint64_t loaded = 0;
};

}  // namespace

LoadingWatch::LoadingWatch(std::unique_ptr<RankTransport> transport,
                           const CommunicatorOptions& options)
    : transport_(std::move(transport)),
      options_(options),
      peers_(static_cast<size_t>(transport_->ranks()), Peer{.last_sign = now_seconds()}),
      thread_([this](const std::stop_token& stop) { watch(stop); }) {}

LoadingWatch::~LoadingWatch() = default;

void LoadingWatch::wait_for_all() {
  loaded_ = true;
  thread_.join();
  if (!failure_.empty()) throw Error(ErrorKind::kUnavailable, failure_);
}

// Ends once this rank has told the others that it has loaded, and all of them have said so. Until
// then those that have loaded send and are watched as well.
void LoadingWatch::watch(const std::stop_token& stop) {
  const double pause = std::min(options_.timeout_seconds / kSignsPerTimeout, kLongestPause);
  double last_sent = 0, last_look = now_seconds();
  bool told = false, all_loaded = false;
  while (!stop.stop_requested() && !(told && all_loaded && transport_->flushed())) {
    const double now = now_seconds();
    if (now > last_look + kHeldUpSeconds)
      for (Peer& peer : peers_) peer.last_sign = now;  // they get their time again
    last_look = now;
    const bool loaded = loaded_;
    if (transport_->flushed() && ((loaded && !told) || now >= last_sent + pause)) {
      told = loaded;
      last_sent = now;
      send_sign(loaded);
    }
    all_loaded = take_signs();
    if (!all_loaded) check(now);
    if (!failure_.empty()) return;
    std::this_thread::sleep_for(kPoll);
  }
}

void LoadingWatch::send_sign(bool loaded) {
  const Sign sign{.bytes = bytes_, .loaded = loaded ? 1u : 0u};
  sign_.resize(sizeof(sign));
  std::memcpy(sign_.data(), &sign, sizeof(sign));
  for (int peer = 0; peer < transport_->ranks(); ++peer)
    if (peer != transport_->rank()) transport_->send(peer, sign_);
}

bool LoadingWatch::take_signs() {
  bool all = true;
  Bytes message;
  for (int rank = 0; rank < transport_->ranks(); ++rank) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    if (rank == transport_->rank()) continue;
    while (transport_->receive(rank, message)) {
      Sign sign;
      if (message.size() != sizeof(sign)) continue;
      std::memcpy(&sign, message.data(), sizeof(sign));
      peer = {.last_sign = now_seconds(), .bytes = sign.bytes, .loaded = sign.loaded != 0};
    }
    all = all && peer.loaded;
  }
  return all;
}

void LoadingWatch::check(double now) {
  for (int rank = 0; rank < transport_->ranks(); ++rank) {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    if (rank == transport_->rank()) continue;
    std::string why;
    if (!transport_->alive(rank)) {
      why = fmt::format("rank {} has died", rank);
    } else if (now - peer.last_sign > options_.timeout_seconds) {
      why = fmt::format("rank {} has given no sign for {:.0f} seconds", rank,
                        options_.timeout_seconds);
    } else {
      continue;
    }
    failure_ = fmt::format("rank {} of {} stopped while loading: {}, after {:.1f} GB read",
                           transport_->rank(), transport_->ranks(), why,
                           static_cast<double>(peer.bytes) * 1e-9);
    if (options_.on_failure) options_.on_failure(failure_);
    return;
  }
}

}  // namespace peregrine
