// Peers that do not keep to the protocol, played step by step: whatever they do, the other side
// answers with an outcome, gives back what it held and goes on with others.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "kvshare/state_rig.h"
#include "kvshare/transfer.h"
#include "kvshare/ucx/port_loop.h"
#include "kvshare/ucx/ucx_listener.h"

namespace peregrine::test {
namespace {

using std::chrono::milliseconds;

const char* const kSecret = "a secret that all members share";
constexpr milliseconds kLong{60'000};

bool eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 20'000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return false;
}

// An owner whose answers a test decides.
class ScriptedOwner {
 public:
  // Called for each message of a reader, on the owner's thread.
  using Script = std::function<void(ScriptedOwner&, ucp_ep_h, const PeerMessage&)>;

  explicit ScriptedOwner(Script script) : port_({.transports = "tcp"}) {
    port_.on_message(kControl, [this, script = std::move(script)](const UcxArrival& a) {
      script(*this, a.from, decode_peer_message(a.data));
    });
    listener_.emplace(port_, "127.0.0.1:0", [this](ucp_conn_request_h request) {
      loop_.post([this, request] { eps_.push_back(listener_->accept(request)); });
    });
    loop_.add(&port_);
    loop_.start([](PortLoop::Clock::time_point now) { return now + std::chrono::seconds(1); });
  }
  ~ScriptedOwner() {
    loop_.post([this] {
      hang_up();
      listener_.reset();
    });
    loop_.stop();
  }
  const std::string& address() const { return address_; }

  void say(ucp_ep_h ep, const PeerMessage& message) { port_.send(ep, control(message)); }
  void send(ucp_ep_h ep, uint64_t offset, std::vector<std::byte> bytes) {
    port_.send(ep, {.id = kData,
                    .header = offset_header(offset),
                    .small = std::move(bytes),
                    .data = {},
                    .keep = nullptr});
  }
  void hang_up() {
    for (const ucp_ep_h ep : eps_) port_.close(ep);
    eps_.clear();
  }
  void hang_up_later() {
    loop_.post([this] { hang_up(); });
  }
  // The honest start: true once the message was part of it.
  bool welcome(ucp_ep_h ep, const PeerMessage& message) {
    if (const auto* hello = std::get_if<HelloMessage>(&message)) {
      const Nonce nonce = random_nonce();
      say(ep,
          ChallengeMessage{.nonce = nonce,
                           .proof = peer_proof(kSecret, PeerSide::kOwner, hello->nonce, nonce)});
      return true;
    }
    if (std::holds_alternative<ProofMessage>(message)) say(ep, WelcomeMessage{});
    return std::holds_alternative<ProofMessage>(message);
  }

 private:
  PortLoop loop_;
  UcxPort port_;
  std::optional<UcxListener> listener_;
  std::vector<ucp_ep_h> eps_;
  const std::string& address_ = listener_->address();
};

class ReaderFault : public testing::Test {
 protected:
  FetchResult fetch(const ScriptedOwner& owner, milliseconds deadline = kLong) {
    return client_.fetch({.address = owner.address(),
                          .key = std::string(64, '1'),
                          .tokens = state_.tokens,
                          .deadline = deadline});
  }
  // Answers honestly but for `change`, which may alter the bytes of a read or send nothing.
  using Change = std::function<bool(const ReadMessage&, std::vector<std::byte>&)>;
  ScriptedOwner::Script owner_with(Change change) {
    return [this, change](ScriptedOwner& owner, ucp_ep_h ep, const PeerMessage& message) {
      if (owner.welcome(ep, message)) return;
      if (std::holds_alternative<RequestMessage>(message))
        return owner.say(ep, OfferMessage{.status = OfferStatus::kFound,
                                          .manifest_bytes = image_.manifest().manifest_bytes(),
                                          .image_bytes = image_.bytes().size()});
      const auto* read = std::get_if<ReadMessage>(&message);
      if (read == nullptr) return;
      const auto part = image_.part({read->offset, read->bytes});
      std::vector<std::byte> bytes(part.begin(), part.end());
      if (change(*read, bytes)) owner.send(ep, read->offset, bytes);
    };
  }
  void expect_clean() {
    EXPECT_TRUE(eventually([&] { return client_.memory_bytes() == 0; }));
  }

  const StateShape shape_ = small_shape();
  const SavedState state_ = random_state(shape_, 20'000, 3);
  const StateImage image_ = StateImage::build(state_, shape_);
  TransferClient client_{{.shape = shape_, .secret = kSecret, .transport = PeerTransport::kTcp}};
};

TEST_F(ReaderFault, HonestOwnerOfThisRigIsBelieved) {
  ScriptedOwner owner(owner_with([](auto&, auto&) { return true; }));
  const FetchResult result = fetch(owner);
  ASSERT_EQ(result.outcome, FetchOutcome::kFetched) << result.message;
  expect_same(result.image->state(20'000), state_);
}

TEST_F(ReaderFault, FlippedBitOnTheWayIsFound) {
  for (const bool in_manifest : {true, false}) {
    ScriptedOwner owner(owner_with([&](const ReadMessage& read, auto& bytes) {
      if ((read.offset == 0) == in_manifest) bytes[bytes.size() / 2] ^= std::byte{1};
      return true;
    }));
    EXPECT_EQ(fetch(owner).outcome, FetchOutcome::kDamaged);
    expect_clean();
  }
}

TEST_F(ReaderFault, PartOfAnotherSizeIsNotTaken) {
  ScriptedOwner owner(owner_with([](const ReadMessage& read, auto& bytes) {
    if (read.offset > 0) bytes.resize(bytes.size() - 1);
    return true;
  }));
  EXPECT_EQ(fetch(owner).outcome, FetchOutcome::kDamaged);
  expect_clean();
}

TEST_F(ReaderFault, BytesNobodyAskedForAreNotTaken) {
  ScriptedOwner owner([](ScriptedOwner& owner, ucp_ep_h ep, const PeerMessage& message) {
    if (!owner.welcome(ep, message)) owner.send(ep, 4096, std::vector<std::byte>(100'000));
  });
  EXPECT_EQ(fetch(owner).outcome, FetchOutcome::kDamaged);
  expect_clean();
}

TEST_F(ReaderFault, SilentOwnerCostsTheDeadline) {
  ScriptedOwner owner(owner_with([](const ReadMessage& read, auto&) { return read.offset == 0; }));
  EXPECT_EQ(fetch(owner, milliseconds(300)).outcome, FetchOutcome::kDeadline);
  expect_clean();
}

TEST_F(ReaderFault, StopEndsAFetchUnderWay) {
  std::stop_source stop;
  ScriptedOwner owner(owner_with([&](const ReadMessage& read, auto&) {
    if (read.offset > 0) stop.request_stop();
    return read.offset == 0;
  }));
  const FetchResult result = client_.fetch({.address = owner.address(),
                                            .key = std::string(64, '1'),
                                            .tokens = state_.tokens,
                                            .deadline = kLong},
                                           stop.get_token());
  EXPECT_EQ(result.outcome, FetchOutcome::kCancelled);
  expect_clean();
}

TEST_F(ReaderFault, OwnerThatHangsUpMidwayIsUnreachable) {
  ScriptedOwner* hanging = nullptr;
  ScriptedOwner owner(owner_with([&](const ReadMessage& read, auto&) {
    if (read.offset > 0) hanging->hang_up_later();
    return read.offset == 0;
  }));
  hanging = &owner;
  EXPECT_EQ(fetch(owner).outcome, FetchOutcome::kUnreachable);
  expect_clean();
}

TEST_F(ReaderFault, OwnerWithoutTheSecretLearnsNothing) {
  std::atomic<int> proofs{0};
  ScriptedOwner owner([&](ScriptedOwner& owner, ucp_ep_h ep, const PeerMessage& message) {
    if (std::holds_alternative<HelloMessage>(message))
      owner.say(ep, ChallengeMessage{.nonce = random_nonce(), .proof = random_nonce()});
    else
      ++proofs;
  });
  EXPECT_EQ(fetch(owner).outcome, FetchOutcome::kRefused);
  EXPECT_EQ(proofs, 0);
}

TEST_F(ReaderFault, HugeOfferAllocatesNothing) {
  ScriptedOwner owner([](ScriptedOwner& owner, ucp_ep_h ep, const PeerMessage& message) {
    if (!owner.welcome(ep, message))
      owner.say(ep, OfferMessage{.status = OfferStatus::kFound,
                                 .manifest_bytes = uint64_t{1} << 60,
                                 .image_bytes = uint64_t{1} << 61});
  });
  EXPECT_EQ(fetch(owner).outcome, FetchOutcome::kBusy);
  expect_clean();
}

// A reader that says what a test tells it to.
class ScriptedReader {
 public:
  explicit ScriptedReader(const std::string& owner) : port_({.transports = "tcp"}) {
    port_.on_message(kControl, [this](const UcxArrival& a) {
      const std::lock_guard lock(mutex_);
      heard_.push_back(decode_peer_message(a.data));
    });
    port_.on_message(kData, [this](const UcxArrival&) { ++offered_; });  // and never takes it
    port_.on_failure([this](ucp_ep_h, ucs_status_t) { cut_off_ = true; });
    const SocketAddress socket(owner, false);
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
    params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    params.sockaddr = socket.get();
    ep_ = port_.open(params);
    loop_.add(&port_);
    loop_.start([](PortLoop::Clock::time_point now) { return now + std::chrono::seconds(1); });
  }
  ~ScriptedReader() {
    loop_.post([this] { port_.close(ep_); });
    loop_.stop();
  }
  void say(const PeerMessage& message) {
    loop_.post([this, message] { port_.send(ep_, control(message)); });
  }
  void say_bytes(std::vector<std::byte> bytes) {
    loop_.post([this, bytes = std::move(bytes)] {
      port_.send(ep_, {.id = kControl, .header = {}, .small = bytes, .data = {}, .keep = nullptr});
    });
  }
  bool cut_off() const { return cut_off_; }
  int offered() const { return offered_; }
  template <typename T>
  std::optional<T> hear() {
    std::optional<T> found;
    eventually([&] {
      const std::lock_guard lock(mutex_);
      for (const PeerMessage& message : heard_)
        if (const auto* wanted = std::get_if<T>(&message)) found = *wanted;
      return found.has_value();
    });
    return found;
  }
  bool join() {
    const Nonce nonce = random_nonce();
    say(HelloMessage{.nonce = nonce});
    const auto challenge = hear<ChallengeMessage>();
    if (!challenge) return false;
    say(ProofMessage{.proof = peer_proof(kSecret, PeerSide::kReader, nonce, challenge->nonce),
                     .address = {}});
    return hear<WelcomeMessage>().has_value();
  }
  void ask(uint32_t deadline_ms = 60'000) {
    say(RequestMessage{.key = std::string(64, '1'),
                       .fingerprint = small_shape().fingerprint,
                       .deadline_ms = deadline_ms});
  }

 private:
  std::mutex mutex_;
  std::vector<PeerMessage> heard_;
  std::atomic<bool> cut_off_{false};
  std::atomic<int> offered_{0};
  PortLoop loop_;
  UcxPort port_;
  ucp_ep_h ep_ = nullptr;
};

class OwnerFault : public testing::Test {
 protected:
  OwnerFault() { vault_.put(std::string(64, '1'), {"e", 1}, StateImage::build(state_, shape_)); }
  // After all that, a member is served as ever.
  void expect_service() {
    EXPECT_TRUE(eventually([&] { return vault_.stats().pins == 0; }));
    TransferClient client({.shape = shape_, .secret = kSecret, .transport = PeerTransport::kTcp});
    EXPECT_EQ(client
                  .fetch({.address = server_.address(),
                          .key = std::string(64, '1'),
                          .tokens = state_.tokens,
                          .deadline = kLong})
                  .outcome,
              FetchOutcome::kFetched);
  }

  const StateShape shape_ = small_shape();
  const SavedState state_ = random_state(shape_, 20'000, 3);
  StateVault vault_{{.shape = shape_, .memory_bytes = 1u << 30}};
  TransferServer server_{vault_,
                         {.listen = "127.0.0.1:0",
                          .secret = kSecret,
                          .transport = PeerTransport::kTcp,
                          .max_silence = milliseconds(300)}};
};

TEST_F(OwnerFault, StrangersGetNothing) {
  const std::vector<std::function<void(ScriptedReader&)>> scripts{
      [](ScriptedReader& reader) { reader.ask(); },
      [](ScriptedReader& reader) { reader.say(ReadMessage{.offset = 0, .bytes = 64}); },
      [](ScriptedReader& reader) { reader.say(ProofMessage{}); },
      [](ScriptedReader& reader) { reader.say(HelloMessage{.version = 9, .nonce = {}}); },
      [](ScriptedReader& reader) { reader.say_bytes({std::byte{77}}); },
      [](ScriptedReader& reader) { reader.say_bytes(std::vector<std::byte>(1 << 20)); },
      [](ScriptedReader& reader) {
        reader.say(HelloMessage{});
        reader.say(HelloMessage{});
      },
      [](ScriptedReader& reader) {
        reader.say(HelloMessage{});
        reader.say(ProofMessage{.proof = random_nonce(), .address = {}});
        EXPECT_TRUE(reader.hear<RefusedMessage>());
        reader.ask();
      },
      [](ScriptedReader&) {},  // says nothing
  };
  int64_t refused = 0;
  for (const auto& script : scripts) {
    ScriptedReader reader(server_.address());
    script(reader);
    EXPECT_TRUE(eventually([&] { return reader.cut_off(); })) << "script " << refused;
    EXPECT_EQ(server_.stats().refused, ++refused);
    EXPECT_EQ(reader.offered(), 0);
  }
  EXPECT_EQ(server_.stats().requests, 0);
  EXPECT_EQ(server_.stats().sent_bytes, 0u);
  expect_service();
}

TEST_F(OwnerFault, MembersReadInsideTheirImageOnly) {
  const uint64_t size = StateImage::build(state_, shape_).bytes().size();
  for (const auto& [offset, bytes] : {std::pair<uint64_t, uint64_t>{0, 0},
                                      {0, size + 1},
                                      {size, 1},
                                      {~uint64_t{0}, 2},
                                      {2, ~uint64_t{0}}}) {
    ScriptedReader reader(server_.address());
    ASSERT_TRUE(reader.join());
    reader.ask();
    ASSERT_TRUE(reader.hear<OfferMessage>());
    reader.say(ReadMessage{.offset = offset, .bytes = bytes});
    EXPECT_TRUE(eventually([&] { return reader.cut_off(); }));
    EXPECT_EQ(reader.offered(), 0);
  }
  EXPECT_EQ(server_.stats().broken, 5);
  expect_service();
}

TEST_F(OwnerFault, ReaderThatNeverTakesItsBytesIsCutOff) {
  ScriptedReader reader(server_.address());
  ASSERT_TRUE(reader.join());
  reader.ask(400);
  ASSERT_TRUE(reader.hear<OfferMessage>());
  EXPECT_EQ(vault_.stats().pins, 1);
  EXPECT_TRUE(eventually([&] { return reader.cut_off(); }));
  EXPECT_EQ(server_.stats().expired, 1);
  expect_service();
}

TEST_F(OwnerFault, ReaderThatLeavesMidwayLetsGoOfTheImage) {
  {
    ScriptedReader reader(server_.address());
    ASSERT_TRUE(reader.join());
    reader.ask();
    ASSERT_TRUE(reader.hear<OfferMessage>());
    reader.say(ReadMessage{.offset = 4096, .bytes = 1 << 20});
    EXPECT_EQ(vault_.stats().pins, 1);
  }
  EXPECT_TRUE(eventually([&] { return server_.stats().reading == 0; }));
  EXPECT_EQ(server_.stats().broken, 1);
  expect_service();
}

TEST_F(OwnerFault, ServerEndsUnderItsReaders) {
  TransferServer server(vault_, {.listen = "127.0.0.1:0", .secret = kSecret});
  auto ending = std::make_unique<TransferServer>(
      vault_, TransferServerOptions{.listen = "127.0.0.1:0", .secret = kSecret});
  ScriptedReader reader(ending->address());
  ASSERT_TRUE(reader.join());
  reader.ask();
  ASSERT_TRUE(reader.hear<OfferMessage>());
  reader.say(ReadMessage{.offset = 4096, .bytes = 1 << 20});
  ending.reset();
  EXPECT_TRUE(eventually([&] { return reader.cut_off(); }));
  expect_service();
}

}  // namespace
}  // namespace peregrine::test
