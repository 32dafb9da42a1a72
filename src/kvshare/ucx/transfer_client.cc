// The reader's side of a transfer. A fetch runs in its caller's thread and does there what takes
// time (parsing, hashing); the loop's thread only moves messages and bytes. A connection carries
// one fetch at a time and waits for the next one when it is done; a fetch that ends otherwise takes
// its connection along, so that nothing late can arrive in memory that is gone.
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/fail.h"
#include "kvshare/transfer.h"
#include "kvshare/ucx/image_memory.h"
#include "kvshare/ucx/port_loop.h"
#include "kvshare/ucx/wire.h"

namespace peregrine {
namespace {

using Clock = PortLoop::Clock;

// How a fetch ends early.
struct Ended {
  FetchOutcome outcome;
  std::string message;
};

const Ended kShutDown{FetchOutcome::kCancelled, "the client is shutting down"};

// Memory that a read fills: counted as long as anybody, UCX included, may touch it.
struct Reservation {
  Reservation(std::shared_ptr<ImageMemory> memory, uint64_t bytes)
      : memory(std::move(memory)), bytes(bytes) {
    if (!this->memory->reserve(bytes))
      throw Ended{FetchOutcome::kBusy, fmt::format("no memory for {} bytes of a state", bytes)};
  }
  ~Reservation() { memory->release(bytes); }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  std::shared_ptr<ImageMemory> memory;
  uint64_t bytes;
};
struct ManifestRoom {
  ManifestRoom(std::shared_ptr<ImageMemory> memory, uint64_t size)
      : reservation(std::move(memory), size), bytes(size) {}
  Reservation reservation;
  std::vector<std::byte> bytes;
};
struct ImageRoom {
  ImageRoom(const std::shared_ptr<ImageMemory>& memory, uint64_t size, uint64_t image_bytes,
            std::span<const std::byte> manifest)
      : reservation(memory, size),
        image(StateImage::of_manifest(manifest, memory->take(image_bytes))) {}
  ~ImageRoom() { reservation.memory->give(image.take_pages()); }
  ImageRoom(const ImageRoom&) = delete;
  ImageRoom& operator=(const ImageRoom&) = delete;

  Reservation reservation;
  StateImage image;
};

// What the loop tells a fetch.
struct Mailbox {
  std::mutex mutex;
  std::condition_variable_any changed;
  bool open = false;
  bool shared_memory = false;  // with `open`
  std::optional<Ended> ended;
  std::optional<OfferMessage> offer;
  std::deque<uint64_t> arrived;  // offsets of pieces

  template <typename Change>
  void update(Change change) {
    {
      const std::lock_guard lock(mutex);
      change(*this);
    }
    changed.notify_all();
  }
};

struct Piece {
  std::span<std::byte> room;
  std::shared_ptr<const void> keep;
};

// The parts of an image that are being read, in order of offset. The counts belong to the mailbox's
// mutex.
struct Pieces {
  std::vector<ByteRange> ranges;
  size_t asked = 0;
  size_t taken = 0;  // arrived, and somebody checks or has checked it
  size_t checked = 0;
};
// Threads that help the caller to check a large image, and how many pieces are worth one.
const size_t kHelpers = std::clamp<size_t>(std::thread::hardware_concurrency() / 2, 1, 3);
constexpr size_t kPiecesPerHelper = 8;

// A connection; belongs to the loop.
struct Link {
  uint64_t id = 0;
  std::string address;
  ucp_ep_h ep = nullptr;
  Nonce reader_nonce{}, owner_nonce{};
  bool member = false;
  bool doomed = false;  // about to be closed: carries no further fetch
  std::unique_ptr<UcxPort> shared_port;
  std::shared_ptr<Mailbox> mailbox;  // of the fetch it carries; null: idle
  std::map<uint64_t, Piece> pieces;  // asked for, by offset
};

}  // namespace

class TransferClient::Impl {
 public:
  explicit Impl(TransferClientOptions options)
      : options_(std::move(options)),
        memory_(std::make_shared<ImageMemory>(options_.memory_bytes)),
        port_(port_options()) {
    listen_on(port_);
    port_.on_failure([this](ucp_ep_h ep, ucs_status_t status) {
      if (const auto it = by_ep_.find(ep); it != by_ep_.end())
        close_later(it->second,
                    {FetchOutcome::kUnreachable,
                     fmt::format("the connection is gone ({})", ucs_status_string(status))});
    });
    loop_.add(&port_);
    loop_.start([](Clock::time_point now) { return now + std::chrono::minutes(1); });
  }

  ~Impl() {
    {
      std::unique_lock lock(mutex_);
      stopping_ = true;
      loop_.post([this] {
        closed_ = true;
        while (!links_.empty()) close(links_.begin()->first, kShutDown);
      });
      changed_.notify_all();
      changed_.wait(lock, [this] { return fetches_ == 0; });
    }
    loop_.stop();
  }

  FetchResult fetch(const FetchRequest& request, std::stop_token stop);
  uint64_t memory_bytes() const { return memory_->used(); }

 private:
  // One fetch, in its caller's thread.
  struct Fetch {
    const FetchRequest& request;
    std::stop_token stop;
    Clock::time_point deadline;
    std::shared_ptr<Mailbox> mailbox = std::make_shared<Mailbox>();
    uint64_t link = 0;
    FetchResult result = {};
  };

  UcxPort::Options port_options() const {
    check_secret(options_.secret);
    return {.transports = network_transports(options_.transport),
            .devices = network_devices(options_.address),
            .peer_failures = true};
  }
  void listen_on(UcxPort& port);

  // -- in the caller's thread; these throw Ended
  void take_turn(const Fetch& fetch);
  void give_turn();
  template <typename Ready>
  void wait_for(const Fetch& fetch, Ready ready);
  void connect(Fetch& fetch);
  OfferMessage ask(const Fetch& fetch);
  void read(const Fetch& fetch, ByteRange range, Piece piece);
  std::shared_ptr<ManifestRoom> read_manifest(Fetch& fetch, const OfferMessage& offer);
  void read_image(Fetch& fetch, const std::shared_ptr<ImageRoom>& room, int64_t prefix);
  void check_pieces(const Fetch& fetch, const std::shared_ptr<ImageRoom>& room, Pieces& pieces);
  void transfer(Fetch& fetch);

  // -- in the loop's thread
  void open_link(uint64_t id, const std::string& address, const SocketAddress& socket,
                 std::shared_ptr<Mailbox> mailbox);
  void close(uint64_t id, const Ended& why);
  void close_later(uint64_t id, Ended why) {
    if (Link* link = find(id)) link->doomed = true;
    loop_.post([this, id, why = std::move(why)] { close(id, why); });
  }
  Link* find(uint64_t id) {
    const auto it = links_.find(id);
    return it == links_.end() ? nullptr : &it->second;
  }
  // The connection is ready for its fetch.
  static void hand_over(const Link& link, bool shared_memory) {
    if (link.mailbox == nullptr) return;
    link.mailbox->update([&](Mailbox& box) {
      box.open = true;
      box.shared_memory = shared_memory;
    });
  }
  void forget_shared_port(uint64_t id) {
    Link* link = find(id);
    if (link == nullptr || link->shared_port == nullptr) return;
    loop_.remove(link->shared_port.get());
    link->shared_port.reset();
  }
  void say(const Link& link, const PeerMessage& message) { port_.send(link.ep, control(message)); }
  void control_arrived(const UcxArrival& arrival);
  void prove(Link& link, const ChallengeMessage& challenge);
  void data_arrived(const UcxArrival& arrival, uint64_t link);

  const TransferClientOptions options_;
  const std::shared_ptr<ImageMemory> memory_;
  // Callers.
  std::mutex mutex_;
  std::condition_variable_any changed_;
  int fetches_ = 0;  // inside fetch()
  int running_ = 0;  // of these, those that have their turn
  uint64_t last_id_ = 0;
  bool stopping_ = false;
  // The loop; before the port, whose end calls back.
  std::unordered_map<uint64_t, Link> links_;
  std::unordered_map<ucp_ep_h, uint64_t> by_ep_;
  bool closed_ = false;
  PortLoop loop_;
  UcxPort port_;
};

// -- the loop ------------------------------------------------------------------------------------

void TransferClient::Impl::listen_on(UcxPort& port) {
  port.on_message(kControl, [this](const UcxArrival& a) { control_arrived(a); });
  port.on_message(kData, [this](const UcxArrival& a) {
    if (const auto it = by_ep_.find(a.from); it != by_ep_.end()) data_arrived(a, it->second);
  });
}

void TransferClient::Impl::open_link(uint64_t id, const std::string& address,
                                     const SocketAddress& socket,
                                     std::shared_ptr<Mailbox> mailbox) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = socket.get();
  const ucp_ep_h ep = closed_ ? nullptr : port_.open(params);
  if (ep == nullptr) {
    mailbox->update([&](Mailbox& box) {
      box.ended = closed_ ? kShutDown
                          : Ended{FetchOutcome::kUnreachable,
                                  fmt::format("{}: cannot be reached", address)};
    });
    return;
  }
  Link& link = links_[id];
  link.id = id;
  link.address = address;
  link.ep = ep;
  link.reader_nonce = random_nonce();
  link.mailbox = std::move(mailbox);
  by_ep_[ep] = id;
  say(link, HelloMessage{.nonce = link.reader_nonce});
}

void TransferClient::Impl::close(uint64_t id, const Ended& why) {
  const auto it = links_.find(id);
  if (it == links_.end()) return;
  // Out of the map first: closing calls back for what is under way, which then finds nothing.
  const auto node = links_.extract(it);
  const Link& link = node.mapped();
  by_ep_.erase(link.ep);
  port_.close(link.ep);
  if (link.shared_port != nullptr) loop_.remove(link.shared_port.get());
  if (link.mailbox != nullptr)
    link.mailbox->update([&](Mailbox& box) {
      if (!box.ended) box.ended = why;
    });
}

void TransferClient::Impl::control_arrived(const UcxArrival& arrival) {
  const auto it = by_ep_.find(arrival.from);
  if (it == by_ep_.end() || arrival.offered != nullptr) return;
  Link& link = links_.at(it->second);
  try {
    const PeerMessage message = decode_peer_message(arrival.data);
    if (const auto* challenge = std::get_if<ChallengeMessage>(&message)) {
      if (!link.member) return prove(link, *challenge);
    } else if (std::holds_alternative<RefusedMessage>(message)) {
      return close_later(link.id, {FetchOutcome::kRefused, "the owner refuses our secret"});
    } else if (const auto* welcome = std::get_if<WelcomeMessage>(&message)) {
      if (welcome->shared_memory == 0 && options_.transport == PeerTransport::kSharedMemory)
        return close_later(
            link.id, {FetchOutcome::kUnreachable, "the owner shares no memory with this process"});
      link.member = true;
      if (welcome->shared_memory == 0 && link.shared_port != nullptr)
        loop_.post([this, id = link.id] { forget_shared_port(id); });
      return hand_over(link, welcome->shared_memory != 0);
    } else if (const auto* offer = std::get_if<OfferMessage>(&message)) {
      if (link.mailbox) link.mailbox->update([&](Mailbox& box) { box.offer = *offer; });
      return;
    }
    close_later(link.id, {FetchOutcome::kUnreachable, "the owner says what does not fit here"});
  } catch (const Error& error) {
    close_later(link.id, {FetchOutcome::kUnreachable, error.what()});
  }
}

void TransferClient::Impl::prove(Link& link, const ChallengeMessage& challenge) {
  const Nonce& reader = link.reader_nonce;
  const Nonce& owner = challenge.nonce;
  if (!same_proof(challenge.proof, peer_proof(options_.secret, PeerSide::kOwner, reader, owner)))
    return close_later(link.id, {FetchOutcome::kRefused, "the owner does not know our secret"});
  ProofMessage message{.proof = peer_proof(options_.secret, PeerSide::kReader, reader, owner),
                       .address = {}};
  if (may_share_memory(options_.transport) && challenge.machine != Proof{} &&
      challenge.machine == machine_mark(options_.secret, reader, owner)) {
    try {
      auto port = shared_memory_port();
      // The endpoint names the connection for life, its id only for a fetch.
      port->on_message(kData, [this, ep = link.ep](const UcxArrival& a) {
        if (const auto it = by_ep_.find(ep); it != by_ep_.end()) data_arrived(a, it->second);
      });
      message.address = port->address();
      link.shared_port = std::move(port);
      loop_.add(link.shared_port.get());
    } catch (const Error&) {  // none on this machine: the network does
      message.address.clear();
    }
  }
  say(link, message);
}

void TransferClient::Impl::data_arrived(const UcxArrival& arrival, uint64_t id) {
  uint64_t offset = 0;
  Link* link = find(id);
  if (link == nullptr || arrival.header.size() != sizeof(offset)) return;
  std::memcpy(&offset, arrival.header.data(), sizeof(offset));
  const auto it = link->pieces.find(offset);
  if (it == link->pieces.end() || it->second.room.size() != arrival.bytes)
    return close_later(id, {FetchOutcome::kDamaged, "the owner sends what nobody asked for"});
  const Piece piece = std::move(it->second);
  link->pieces.erase(it);
  const auto arrived = [this, id, offset, mailbox = link->mailbox](ucs_status_t status) {
    if (mailbox == nullptr) return;
    if (status == UCS_OK)
      mailbox->update([offset](Mailbox& box) { box.arrived.push_back(offset); });
    else
      close_later(
          id, {FetchOutcome::kUnreachable,
               fmt::format("a part of the state did not arrive ({})", ucs_status_string(status))});
  };
  if (arrival.offered != nullptr) {
    UcxPort& port = link->shared_port != nullptr ? *link->shared_port : port_;
    port.take(arrival, piece.room, piece.keep, arrived);
  } else {
    std::copy(arrival.data.begin(), arrival.data.end(), piece.room.begin());
    arrived(UCS_OK);
  }
}

// -- the caller ----------------------------------------------------------------------------------

template <typename Ready>
void TransferClient::Impl::wait_for(const Fetch& fetch, Ready ready) {
  Mailbox& box = *fetch.mailbox;
  std::unique_lock lock(box.mutex);
  const bool woken = box.changed.wait_until(lock, fetch.stop, fetch.deadline,
                                            [&] { return box.ended || ready(box); });
  if (box.ended) throw *box.ended;
  if (woken) return;
  if (fetch.stop.stop_requested()) throw Ended{FetchOutcome::kCancelled, "stopped by its caller"};
  throw Ended{FetchOutcome::kDeadline,
              fmt::format("{}: not done after {} ms", fetch.request.address,
                          fetch.request.deadline.count())};
}

void TransferClient::Impl::take_turn(const Fetch& fetch) {
  std::unique_lock lock(mutex_);
  const bool mine = changed_.wait_until(lock, fetch.stop, fetch.deadline, [this] {
    return stopping_ || running_ < options_.max_fetches;
  });
  if (stopping_ || (!mine && fetch.stop.stop_requested()))
    throw Ended{FetchOutcome::kCancelled, "stopped before its turn"};
  if (!mine) throw Ended{FetchOutcome::kDeadline, "the deadline passed before its turn"};
  ++running_;
}

void TransferClient::Impl::give_turn() {
  const std::lock_guard lock(mutex_);
  --running_;
  changed_.notify_all();
}

void TransferClient::Impl::connect(Fetch& fetch) {
  auto socket = std::make_shared<const SocketAddress>(fetch.request.address, false);
  {
    const std::lock_guard lock(mutex_);
    fetch.link = ++last_id_;
  }
  // An idle connection to the same owner changes its id, so that late closes miss it.
  loop_.post(
      [this, id = fetch.link, address = fetch.request.address, socket, mailbox = fetch.mailbox] {
        const auto idle = std::find_if(links_.begin(), links_.end(), [&](const auto& at) {
          const Link& link = at.second;
          return link.mailbox == nullptr && !link.doomed && link.address == address;
        });
        if (idle == links_.end()) return open_link(id, address, *socket, mailbox);
        auto node = links_.extract(idle);
        node.key() = id;
        node.mapped().id = id;
        node.mapped().mailbox = mailbox;
        by_ep_[node.mapped().ep] = id;
        const Link& link = links_.insert(std::move(node)).position->second;
        hand_over(link, link.shared_port != nullptr);
      });
  wait_for(fetch, [](Mailbox& box) { return box.open; });
  const std::lock_guard lock(fetch.mailbox->mutex);
  fetch.result.over_shared_memory = fetch.mailbox->shared_memory;
}

OfferMessage TransferClient::Impl::ask(const Fetch& fetch) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(fetch.deadline - Clock::now());
  RequestMessage message{
      .key = fetch.request.key,
      .fingerprint = options_.shape.fingerprint,
      .deadline_ms = static_cast<uint32_t>(std::clamp<int64_t>(left.count(), 1, 3'600'000))};
  loop_.post([this, id = fetch.link, message = std::move(message)] {
    if (Link* link = find(id)) say(*link, message);
  });
  wait_for(fetch, [](Mailbox& box) { return box.offer.has_value(); });
  const std::lock_guard lock(fetch.mailbox->mutex);
  return *fetch.mailbox->offer;
}

void TransferClient::Impl::read(const Fetch& fetch, ByteRange range, Piece piece) {
  loop_.post([this, id = fetch.link, range, piece = std::move(piece)] {
    Link* link = find(id);
    if (link == nullptr) return;
    link->pieces[range.offset] = piece;
    say(*link, ReadMessage{.offset = range.offset, .bytes = range.bytes});
  });
}

std::shared_ptr<ManifestRoom> TransferClient::Impl::read_manifest(Fetch& fetch,
                                                                  const OfferMessage& offer) {
  if (offer.manifest_bytes < StateManifest::kHeadBytes || offer.manifest_bytes > offer.image_bytes)
    throw Ended{FetchOutcome::kDamaged,
                fmt::format("a manifest of {} bytes", offer.manifest_bytes)};
  auto room = std::make_shared<ManifestRoom>(memory_, offer.manifest_bytes);
  read(fetch, {0, offer.manifest_bytes}, {.room = room->bytes, .keep = room});
  wait_for(fetch, [](Mailbox& box) { return !box.arrived.empty(); });
  fetch.result.bytes += offer.manifest_bytes;
  const std::lock_guard lock(fetch.mailbox->mutex);
  fetch.mailbox->arrived.clear();
  return room;
}

// Keeps a few pieces under way and checks those that have arrived, here and on helping threads: one
// core hashes slower than a fast link delivers. Pieces that wait to be checked do not hold up the
// next ones, because their memory is there already.
void TransferClient::Impl::read_image(Fetch& fetch, const std::shared_ptr<ImageRoom>& room,
                                      int64_t prefix) {
  const auto ranges = room->image.manifest().ranges(prefix);
  Pieces pieces{.ranges = StateManifest::split(ranges, kPieceBytes)};
  // What one of the threads finds ends it for all.
  const auto work = [&] {
    try {
      check_pieces(fetch, room, pieces);
    } catch (const Ended& ended) {
      fetch.mailbox->update([&](Mailbox& box) {
        if (!box.ended) box.ended = ended;
      });
    }
  };
  {
    std::vector<std::jthread> helpers(std::min(kHelpers, pieces.ranges.size() / kPiecesPerHelper));
    for (std::jthread& helper : helpers) helper = std::jthread(work);
    work();
  }
  wait_for(fetch, [&](Mailbox&) { return pieces.checked == pieces.ranges.size(); });
  for (const ByteRange& piece : pieces.ranges) fetch.result.bytes += piece.bytes;
  room->image.set_held(prefix);
}

// Until no piece is left to check.
void TransferClient::Impl::check_pieces(const Fetch& fetch, const std::shared_ptr<ImageRoom>& room,
                                        Pieces& pieces) {
  StateImage& image = room->image;
  const std::vector<ByteRange>& all = pieces.ranges;
  while (true) {
    std::vector<ByteRange> wanted;
    fetch.mailbox->update([&](Mailbox& box) {
      for (; pieces.asked < all.size() &&
             pieces.asked < pieces.taken + box.arrived.size() + kPiecesUnderWay;
           ++pieces.asked)
        wanted.push_back(all[pieces.asked]);
    });
    for (const ByteRange& piece : wanted)
      read(fetch, piece, {.room = image.room(piece), .keep = room});
    std::optional<uint64_t> offset;
    wait_for(fetch, [&](Mailbox& box) {
      if (pieces.taken == all.size()) return true;
      if (box.arrived.empty()) return false;
      offset = box.arrived.front();
      box.arrived.pop_front();
      ++pieces.taken;
      return true;
    });
    if (!offset) return;
    const auto piece = std::lower_bound(
        all.begin(), all.end(), *offset,
        [](const ByteRange& range, uint64_t value) { return range.offset < value; });
    if (!image.manifest().intact(*piece, image.part(*piece)))
      throw Ended{FetchOutcome::kDamaged,
                  fmt::format("damaged between bytes {} and {}", *offset, *offset + piece->bytes)};
    fetch.mailbox->update([&](Mailbox&) { ++pieces.checked; });
  }
}

void TransferClient::Impl::transfer(Fetch& fetch) {
  connect(fetch);
  const OfferMessage offer = ask(fetch);
  switch (offer.status) {
    case OfferStatus::kFound:
      break;
    case OfferStatus::kAbsent:
      throw Ended{FetchOutcome::kAbsent, "the owner does not have it"};
    case OfferStatus::kBusy:
      throw Ended{FetchOutcome::kBusy, "the owner has too many readers"};
    case OfferStatus::kOtherEngine:
      throw Ended{FetchOutcome::kOtherEngine, "the owner's states are another engine's"};
  }
  const auto head = read_manifest(fetch, offer);
  std::optional<StateManifest> manifest;
  try {
    manifest = StateManifest::parse(head->bytes);
  } catch (const Error& error) {
    throw Ended{FetchOutcome::kDamaged, error.what()};
  }
  if (const std::string why = manifest->misfit(options_.shape); !why.empty())
    throw Ended{FetchOutcome::kOtherEngine, why};
  if (manifest->image_bytes() != offer.image_bytes)
    throw Ended{FetchOutcome::kDamaged, "an image of another size than its manifest says"};
  const int64_t prefix = manifest->common_prefix(fetch.request.tokens);
  if (prefix < std::max<int64_t>(1, fetch.request.min_tokens))
    throw Ended{FetchOutcome::kNoPrefix, fmt::format("{} tokens in common", prefix)};

  uint64_t needed = manifest->manifest_bytes();
  for (const ByteRange& range : manifest->ranges(prefix)) needed += range.bytes;
  auto room = std::make_shared<ImageRoom>(memory_, needed, manifest->image_bytes(), head->bytes);
  read_image(fetch, room, prefix);
  fetch.result.image = PinnedImage(room, &room->image);
  fetch.result.tokens = prefix;
}

FetchResult TransferClient::Impl::fetch(const FetchRequest& request, std::stop_token stop) {
  const auto start = Clock::now();
  Fetch fetch{.request = request, .stop = std::move(stop), .deadline = start + request.deadline};
  {
    const std::lock_guard lock(mutex_);
    ++fetches_;
  }
  bool turn = false;
  // Answers after which the connection is as good as before; all others close it.
  const auto keeps_connection = [](FetchOutcome outcome) {
    return outcome == FetchOutcome::kFetched || outcome == FetchOutcome::kAbsent ||
           outcome == FetchOutcome::kNoPrefix;
  };
  try {
    take_turn(fetch);
    turn = true;
    transfer(fetch);
    fetch.result.outcome = FetchOutcome::kFetched;
  } catch (const Ended& ended) {
    fetch.result.outcome = ended.outcome;
    fetch.result.message = ended.message;
  } catch (const Error& error) {
    fetch.result.outcome =
        error.kind() == ErrorKind::kOutOfMemory ? FetchOutcome::kBusy : FetchOutcome::kUnreachable;
    fetch.result.message = error.what();
  } catch (const std::bad_alloc&) {
    fetch.result.outcome = FetchOutcome::kBusy;
    fetch.result.message = "no memory for the state";
  }
  loop_.post([this, id = fetch.link, outcome = fetch.result.outcome,
              keep = keeps_connection(fetch.result.outcome)] {
    Link* link = find(id);
    if (link == nullptr) return;
    if (!keep) return close(id, {outcome, ""});
    if (outcome != FetchOutcome::kAbsent) say(*link, DoneMessage{});
    link->mailbox = nullptr;
  });
  if (turn) give_turn();
  fetch.result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const std::lock_guard lock(mutex_);
  --fetches_;
  changed_.notify_all();
  return std::move(fetch.result);
}

TransferClient::TransferClient(TransferClientOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
TransferClient::~TransferClient() = default;
FetchResult TransferClient::fetch(const FetchRequest& request, std::stop_token stop) {
  return impl_->fetch(request, std::move(stop));
}
uint64_t TransferClient::memory_bytes() const { return impl_->memory_bytes(); }

}  // namespace peregrine
