// The owner's side of a transfer: peers are strangers until they prove to know the secret, then
// read one image at a time. All state belongs to the loop's thread; files are read by another.
#include <spdlog/spdlog.h>

#include <atomic>
#include <unordered_map>
#include <utility>

#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>

#include "base/fail.h"
#include "kvshare/transfer.h"
#include "kvshare/ucx/port_loop.h"
#include "kvshare/ucx/ucx_listener.h"
#include "kvshare/ucx/wire.h"

namespace peregrine {
namespace {

using Clock = PortLoop::Clock;

constexpr size_t kMaxPeers = 256;
constexpr size_t kMaxSends = 64;  // of one peer under way

}  // namespace

class TransferServer::Impl {
 public:
  Impl(StateVault& vault, TransferServerOptions options)
      : vault_(vault), options_(std::move(options)), port_(port_options()) {
    port_.on_message(kControl, [this](const UcxArrival& a) { control_arrived(a); });
    port_.on_failure([this](ucp_ep_h ep, ucs_status_t) {
      if (const auto it = by_ep_.find(ep); it != by_ep_.end())
        loop_.post([this, id = it->second] { drop(id, End::kBroken); });
    });
    listener_.emplace(port_, options_.listen, [this](ucp_conn_request_h request) {
      loop_.post([this, request] { accept(request); });
    });
    address_ = listener_->address();
    loop_.add(&port_);
    loop_.start([this](Clock::time_point now) { return expire(now); });
  }

  ~Impl() {
    loader_.stop();
    loader_.join();
    loop_.post([this] {
      while (!peers_.empty()) drop(peers_.begin()->first, End::kClosed);
      listener_.reset();
    });
    loop_.stop();
  }

  const std::string& address() const { return address_; }
  TransferServerStats stats() const {
    return {.peers = peers_count_,
            .refused = refused_,
            .requests = requests_,
            .reading = reading_,
            .expired = expired_,
            .broken = broken_,
            .sent_bytes = sent_bytes_};
  }

 private:
  enum class State { kSilent, kChallenged, kMember, kRefused };
  enum class End { kClosed, kBroken, kExpired };

  struct Peer {
    ucp_ep_h ep = nullptr;
    State state = State::kSilent;
    Nonce reader_nonce{}, owner_nonce{};
    Clock::time_point until = Clock::time_point::max();
    // Data goes here; the port is the peer's own, because a shared memory port cannot be told of
    // one peer's death, only be destroyed.
    std::unique_ptr<UcxPort> shared_port;
    ucp_ep_h shared_ep = nullptr;
    bool reading = false;  // from request to done
    PinnedImage image;     // null while the vault looks it up
    size_t sends = 0;      // under way
  };

  UcxPort::Options port_options() const {
    check_secret(options_.secret);
    return {.transports = network_transports(options_.transport),
            .devices = network_devices(options_.listen),
            .peer_failures = true};
  }

  void accept(ucp_conn_request_h request) {
    if (!listener_) return;
    if (peers_.size() >= kMaxPeers) return listener_->reject(request);
    const ucp_ep_h ep = listener_->accept(request);
    if (ep == nullptr) return;
    const uint64_t id = ++last_id_;
    Peer& peer = peers_[id];
    peer.ep = ep;
    peer.until = Clock::now() + options_.max_silence;
    by_ep_[ep] = id;
    peers_count_ = static_cast<int64_t>(peers_.size());
  }

  void drop(uint64_t id, End end) {
    const auto it = peers_.find(id);
    if (it == peers_.end()) return;
    // Out of the map first: closing calls back for its sends under way, which then find nobody.
    // They hold the image until UCX has let go of it.
    const auto node = peers_.extract(it);
    const Peer& peer = node.mapped();
    peers_count_ = static_cast<int64_t>(peers_.size());
    if (end != End::kClosed && (peer.state == State::kSilent || peer.state == State::kChallenged))
      ++refused_;
    if (peer.reading) {
      --reading_;
      if (end == End::kBroken) ++broken_;
      if (end == End::kExpired) ++expired_;
    }
    by_ep_.erase(peer.ep);
    port_.close(peer.ep);
    if (peer.shared_port != nullptr) loop_.remove(peer.shared_port.get());
  }

  Clock::time_point expire(Clock::time_point now) {
    Clock::time_point next = now + std::chrono::minutes(1);
    std::vector<uint64_t> late;
    for (const auto& [id, peer] : peers_) {
      if (peer.until <= now)
        late.push_back(id);
      else
        next = std::min(next, peer.until);
    }
    for (const uint64_t id : late) drop(id, End::kExpired);
    return next;
  }

  // -- messages

  void control_arrived(const UcxArrival& arrival) {
    const auto it = by_ep_.find(arrival.from);
    if (it == by_ep_.end() || arrival.offered != nullptr) return;
    const uint64_t id = it->second;
    try {
      const PeerMessage message = decode_peer_message(arrival.data);
      if (answer(id, peers_.at(id), message)) return;
      spdlog::warn("state transfer: a peer says what does not fit here (message {}), dropped",
                   message.index() + 1);
    } catch (const Error& error) {
      spdlog::warn("state transfer: {}, dropped", error.what());
    }
    loop_.post([this, id] { drop(id, End::kBroken); });
  }

  void say(const Peer& peer, const PeerMessage& message) { port_.send(peer.ep, control(message)); }

  // Whether the message fits the state of the conversation.
  bool answer(uint64_t id, Peer& peer, const PeerMessage& message) {
    if (const auto* hello = std::get_if<HelloMessage>(&message))
      return peer.state == State::kSilent && challenge(peer, *hello);
    if (const auto* proof = std::get_if<ProofMessage>(&message))
      return peer.state == State::kChallenged && admit(peer, *proof);
    if (peer.state != State::kMember) return false;
    if (const auto* request = std::get_if<RequestMessage>(&message))
      return !peer.reading && look_up(id, peer, *request);
    if (const auto* read = std::get_if<ReadMessage>(&message))
      return peer.image != nullptr && send_part(id, peer, *read);
    if (std::holds_alternative<DoneMessage>(message)) return peer.reading && finish(peer);
    return false;
  }

  bool challenge(Peer& peer, const HelloMessage& hello) {
    if (hello.version != kPeerProtocolVersion) return false;
    peer.reader_nonce = hello.nonce;
    peer.owner_nonce = random_nonce();
    peer.state = State::kChallenged;
    const auto& [reader, owner] = std::tie(peer.reader_nonce, peer.owner_nonce);
    say(peer,
        ChallengeMessage{.nonce = owner,
                         .proof = peer_proof(options_.secret, PeerSide::kOwner, reader, owner),
                         .machine = may_share_memory(options_.transport)
                                        ? machine_mark(options_.secret, reader, owner)
                                        : Proof{}});
    return true;
  }

  bool admit(Peer& peer, const ProofMessage& message) {
    const Proof expected =
        peer_proof(options_.secret, PeerSide::kReader, peer.reader_nonce, peer.owner_nonce);
    if (!same_proof(message.proof, expected)) {
      peer.state = State::kRefused;  // its deadline stands, so that it hears the answer
      ++refused_;
      say(peer, RefusedMessage{});
      return true;
    }
    peer.state = State::kMember;
    peer.until = Clock::time_point::max();
    const bool shared = !message.address.empty() && may_share_memory(options_.transport) &&
                        share_memory(peer, message.address);
    say(peer, WelcomeMessage{.shared_memory = shared ? 1u : 0u});
    return true;
  }

  bool share_memory(Peer& peer, const std::vector<std::byte>& address) {
    try {
      auto port = shared_memory_port();
      ucp_ep_params_t params{};
      params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
      params.address = reinterpret_cast<const ucp_address_t*>(address.data());
      peer.shared_ep = port->open(params);
      if (peer.shared_ep == nullptr) return false;
      peer.shared_port = std::move(port);
      loop_.add(peer.shared_port.get());
      return true;
    } catch (const Error& error) {
      spdlog::debug("state transfer: no shared memory ({})", error.what());
      return false;
    }
  }

  bool look_up(uint64_t id, Peer& peer, const RequestMessage& request) {
    ++requests_;
    if (request.fingerprint != vault_.shape().fingerprint) {
      say(peer, OfferMessage{.status = OfferStatus::kOtherEngine});
      return true;
    }
    if (reading_ >= options_.max_readers) {
      say(peer, OfferMessage{.status = OfferStatus::kBusy});
      return true;
    }
    ++reading_;
    peer.reading = true;
    peer.until =
        Clock::now() + std::min<std::chrono::milliseconds>(
                           options_.max_read, std::chrono::milliseconds(request.deadline_ms));
    boost::asio::post(loader_, [this, id, key = request.key] {
      PinnedImage image = vault_.pin(key);
      loop_.post([this, id, image = std::move(image)] { offer(id, image); });
    });
    return true;
  }

  void offer(uint64_t id, const PinnedImage& image) {
    const auto it = peers_.find(id);
    if (it == peers_.end() || !it->second.reading) return;
    Peer& peer = it->second;
    if (image == nullptr) {
      say(peer, OfferMessage{.status = OfferStatus::kAbsent});
      finish(peer);
      return;
    }
    peer.image = image;
    say(peer, OfferMessage{.status = OfferStatus::kFound,
                           .manifest_bytes = image->manifest().manifest_bytes(),
                           .image_bytes = image->manifest().image_bytes()});
  }

  bool send_part(uint64_t id, Peer& peer, const ReadMessage& read) {
    const uint64_t image_bytes = peer.image->bytes().size();
    if (read.bytes == 0 || read.bytes > image_bytes || read.offset > image_bytes - read.bytes ||
        peer.sends >= kMaxSends)
      return false;
    ++peer.sends;
    UcxPort& port = peer.shared_port != nullptr ? *peer.shared_port : port_;
    port.send(peer.shared_port != nullptr ? peer.shared_ep : peer.ep,
              {.id = kData,
               .header = offset_header(read.offset),
               .small = {},
               .data = peer.image->part({read.offset, read.bytes}),
               .keep = peer.image},
              [this, id, bytes = read.bytes](ucs_status_t status) {
                if (status == UCS_OK) sent_bytes_ += bytes;
                if (const auto it = peers_.find(id); it != peers_.end()) --it->second.sends;
              });
    return true;
  }

  bool finish(Peer& peer) {
    peer.reading = false;
    peer.image = nullptr;
    peer.until = Clock::time_point::max();
    --reading_;
    return true;
  }

  StateVault& vault_;
  const TransferServerOptions options_;
  std::unordered_map<uint64_t, Peer> peers_;  // before the port, whose end calls back
  std::unordered_map<ucp_ep_h, uint64_t> by_ep_;
  uint64_t last_id_ = 0;

  PortLoop loop_;
  UcxPort port_;
  std::optional<UcxListener> listener_;
  std::string address_;
  boost::asio::thread_pool loader_{1};  // for look-ups in the vault, which may read files

  std::atomic<int64_t> peers_count_{0}, refused_{0}, requests_{0}, reading_{0}, expired_{0},
      broken_{0};
  std::atomic<uint64_t> sent_bytes_{0};
};

bool transfer_available() { return true; }

TransferServer::TransferServer(StateVault& vault, TransferServerOptions options)
    : impl_(std::make_unique<Impl>(vault, std::move(options))) {}
TransferServer::~TransferServer() = default;
std::string TransferServer::address() const { return impl_->address(); }
TransferServerStats TransferServer::stats() const { return impl_->stats(); }

}  // namespace peregrine
