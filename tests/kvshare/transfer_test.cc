// Transfer between an owner and a reader: the state arrives, whole or not at all, and neither side
// waits for the other beyond its deadline or keeps what the other no longer needs.
#include "kvshare/transfer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "kvshare/state_rig.h"
#include "peregrine/error.h"
#include "support/leading_part.h"

namespace peregrine::test {
namespace {

using std::chrono::milliseconds;

const char* const kSecret = "a secret that all members share";
constexpr milliseconds kLong{60'000};  // never reached unless something hangs

std::string key_of(int i) { return fmt::format("{:064x}", i); }

// Waits for what another thread is about to do.
bool eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 20'000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return false;
}

class TransferTest : public testing::TestWithParam<PeerTransport> {
 protected:
  void SetUp() override {
    if (!transfer_available()) GTEST_SKIP() << "built without UCX";
  }
  TransferServerOptions server_options() const {
    return {.listen = "127.0.0.1:0", .secret = kSecret, .transport = GetParam()};
  }
  TransferClientOptions client_options() const {
    return {.shape = shape_, .secret = kSecret, .transport = GetParam()};
  }
  FetchRequest request(const TransferServer& server, const std::vector<int32_t>& tokens,
                       int key = 1) const {
    return {.address = server.address(), .key = key_of(key), .tokens = tokens, .deadline = kLong};
  }
  void keep(int key, const SavedState& state) {
    ASSERT_TRUE(vault_.put(key_of(key), {"e", 1}, StateImage::build(state, shape_)));
  }

  const StateShape shape_ = small_shape();
  StateVault vault_{{.shape = shape_, .memory_bytes = 1u << 30}};
};

std::string name_of(const testing::TestParamInfo<PeerTransport>& info) {
  return transport_name(info.param);
}
INSTANTIATE_TEST_SUITE_P(Transports, TransferTest,
                         testing::Values(PeerTransport::kAuto, PeerTransport::kTcp,
                                         PeerTransport::kSharedMemory),
                         name_of);

TEST_P(TransferTest, WholeStateArrives) {
  TransferServer server(vault_, server_options());
  TransferClient client(client_options());
  for (const int64_t tokens : {1, 100, 20'000}) {
    const SavedState state = random_state(shape_, tokens, 3);
    keep(1, state);
    auto longer = state.tokens;
    longer.push_back(1);
    const FetchResult result = client.fetch(request(server, longer));
    ASSERT_EQ(result.outcome, FetchOutcome::kFetched) << result.message;
    EXPECT_EQ(result.tokens, tokens);
    EXPECT_EQ(result.over_shared_memory, GetParam() != PeerTransport::kTcp);
    expect_same(result.image->state(tokens), state);
    EXPECT_TRUE(result.image->is_complete());
    EXPECT_GE(client.memory_bytes(), result.bytes);
  }
  // The client's thread may hold the last image a moment longer than its reader.
  EXPECT_TRUE(eventually([&] { return client.memory_bytes() == 0; }));
  EXPECT_TRUE(eventually([&] { return vault_.stats().pins == 0; }));
  EXPECT_EQ(server.stats().peers, 1);  // one connection for all
  EXPECT_EQ(server.stats().requests, 3);
}

TEST_P(TransferTest, SharedPrefixReadsOnlyItsPart) {
  TransferServer server(vault_, server_options());
  TransferClient client(client_options());
  const SavedState state = random_state(shape_, 30'000, 4);
  keep(1, state);
  auto other = state.tokens;
  other.resize(8'001);
  other[8'000] = (other[8'000] + 1) % shape_.vocab_size;
  const FetchResult result = client.fetch(request(server, other));
  ASSERT_EQ(result.outcome, FetchOutcome::kFetched) << result.message;
  EXPECT_EQ(result.tokens, 8'000);
  expect_same(result.image->state(8'000), leading_part(state, shape_, 8'000));
  const StateManifest& manifest = result.image->manifest();
  uint64_t bytes = manifest.manifest_bytes();
  for (const ByteRange& range : manifest.ranges(8'000)) bytes += range.bytes;
  EXPECT_EQ(result.bytes, bytes);
  EXPECT_LT(result.bytes, manifest.image_bytes() / 2);
  EXPECT_TRUE(eventually([&] { return server.stats().sent_bytes == bytes; }));
}

TEST_P(TransferTest, AnswersThatAreNotStates) {
  TransferServer server(vault_, server_options());
  TransferClient client(client_options());
  const SavedState state = random_state(shape_, 100, 5);
  keep(1, state);
  EXPECT_EQ(client.fetch(request(server, state.tokens, 2)).outcome, FetchOutcome::kAbsent);
  auto other = state.tokens;
  other[10] = (other[10] + 1) % shape_.vocab_size;
  FetchRequest picky = request(server, other);
  EXPECT_EQ(client.fetch(picky).tokens, 10);
  picky.min_tokens = 11;
  EXPECT_EQ(client.fetch(picky).outcome, FetchOutcome::kNoPrefix);
  other[0] = (other[0] + 1) % shape_.vocab_size;
  EXPECT_EQ(client.fetch(request(server, other)).outcome, FetchOutcome::kNoPrefix);
  EXPECT_EQ(server.stats().peers, 1);
  EXPECT_TRUE(eventually([&] { return server.stats().reading == 0; }));
  EXPECT_EQ(vault_.stats().pins, 0);
}

TEST_P(TransferTest, OtherEnginesGetNothing) {
  TransferServer server(vault_, server_options());
  auto options = client_options();
  options.shape.fingerprint[3] = std::byte{1};
  TransferClient client(options);
  const SavedState state = random_state(shape_, 100, 5);
  keep(1, state);
  EXPECT_EQ(client.fetch(request(server, state.tokens)).outcome, FetchOutcome::kOtherEngine);
  EXPECT_EQ(server.stats().sent_bytes, 0u);
}

TEST_P(TransferTest, WrongSecretIsRefusedAndCounted) {
  TransferServer server(vault_, server_options());
  auto options = client_options();
  options.secret = "another secret, long enough";
  TransferClient client(options);
  const SavedState state = random_state(shape_, 100, 5);
  keep(1, state);
  EXPECT_EQ(client.fetch(request(server, state.tokens)).outcome, FetchOutcome::kRefused);
  EXPECT_TRUE(eventually([&] { return server.stats().refused == 1; }));
  EXPECT_EQ(server.stats().requests, 0);
  EXPECT_EQ(server.stats().sent_bytes, 0u);
}

TEST_P(TransferTest, StateEvictedWhileItIsReadArrivesWhole) {
  TransferServer server(vault_, server_options());
  TransferClient client(client_options());
  const SavedState state = random_state(shape_, 20'000, 6);
  for (int round = 0; round < 5; ++round) {
    keep(1, state);
    std::jthread dropper([&](const std::stop_token& done) {
      while (vault_.stats().pins == 0 && !done.stop_requested()) std::this_thread::yield();
      vault_.drop(key_of(1));
    });
    const FetchResult result = client.fetch(request(server, state.tokens));
    dropper.request_stop();
    dropper.join();
    ASSERT_EQ(result.outcome, FetchOutcome::kFetched) << result.message;
    expect_same(result.image->state(20'000), state);
    EXPECT_TRUE(eventually([&] { return vault_.stats().memory_bytes == 0; }));
  }
}

TEST_P(TransferTest, ManyFetchesAtOnce) {
  TransferServer server(vault_, server_options());
  TransferClient client(client_options());
  constexpr int kThreads = 8;
  std::vector<SavedState> states;
  for (int i = 0; i < kThreads; ++i) {
    states.push_back(random_state(shape_, 2'000 + 100 * i, static_cast<uint64_t>(i)));
    keep(i, states.back());
  }
  std::vector<std::jthread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 5; ++round) {
        const SavedState& state = states[static_cast<size_t>(i)];
        const FetchResult result = client.fetch(request(server, state.tokens, i));
        ASSERT_EQ(result.outcome, FetchOutcome::kFetched) << result.message;
        expect_same(result.image->state(result.tokens), state);
      }
    });
  }
  threads.clear();
  EXPECT_LE(server.stats().peers, 4);  // max_fetches
  EXPECT_TRUE(eventually([&] { return vault_.stats().pins == 0; }));
}

TEST_P(TransferTest, ReadersBeyondTheLimitAreToldToComeBack) {
  auto options = server_options();
  options.max_readers = 0;
  TransferServer server(vault_, options);
  TransferClient client(client_options());
  const SavedState state = random_state(shape_, 100, 5);
  keep(1, state);
  EXPECT_EQ(client.fetch(request(server, state.tokens)).outcome, FetchOutcome::kBusy);
}

TEST_P(TransferTest, MemoryBudgetHolds) {
  TransferServer server(vault_, server_options());
  auto options = client_options();
  const SavedState state = random_state(shape_, 5'000, 5);
  keep(1, state);
  options.memory_bytes = StateImage::build(state, shape_).bytes().size() * 3 / 2;
  TransferClient client(options);
  FetchResult first = client.fetch(request(server, state.tokens));
  ASSERT_EQ(first.outcome, FetchOutcome::kFetched) << first.message;
  EXPECT_EQ(client.fetch(request(server, state.tokens)).outcome, FetchOutcome::kBusy);
  first.image.reset();
  EXPECT_EQ(client.fetch(request(server, state.tokens)).outcome, FetchOutcome::kFetched);
  EXPECT_EQ(vault_.stats().failures, 0);
}

TEST_P(TransferTest, CancelledBeforeItBegins) {
  TransferServer server(vault_, server_options());
  TransferClient client(client_options());
  std::stop_source stop;
  stop.request_stop();
  const std::vector<int32_t> tokens{1};
  EXPECT_EQ(client.fetch(request(server, tokens), stop.get_token()).outcome,
            FetchOutcome::kCancelled);
}

TEST_P(TransferTest, OwnerThatIsGoneIsUnreachable) {
  TransferClient client(client_options());
  const SavedState state = random_state(shape_, 100, 5);
  keep(1, state);
  std::string address;
  {
    TransferServer server(vault_, server_options());
    address = server.address();
    EXPECT_EQ(client.fetch(request(server, state.tokens)).outcome, FetchOutcome::kFetched);
  }
  // Through the connection that was open, and through a new one.
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(
        client
            .fetch(
                {.address = address, .key = key_of(1), .tokens = state.tokens, .deadline = kLong})
            .outcome,
        FetchOutcome::kUnreachable);
}

TEST_P(TransferTest, EndOfTheClientEndsItsFetches) {
  TransferServer server(vault_, server_options());
  const SavedState state = random_state(shape_, 20'000, 5);
  keep(1, state);
  auto client = std::make_unique<TransferClient>(client_options());
  FetchResult result;
  std::jthread fetcher(
      [&, &client = *client] { result = client.fetch(request(server, state.tokens)); });
  eventually([&] { return client->memory_bytes() > 0 || vault_.stats().pins > 0; });
  client.reset();
  fetcher.join();
  EXPECT_TRUE(result.outcome == FetchOutcome::kCancelled ||
              result.outcome == FetchOutcome::kFetched)
      << result.message;
  result.image.reset();
  EXPECT_TRUE(eventually([&] { return vault_.stats().pins == 0; }));
  EXPECT_TRUE(eventually([&] { return server.stats().peers == 0; }));
}

TEST(TransferOptions, WrongOnesEndInASentence) {
  EXPECT_EQ(parse_transport("shm"), PeerTransport::kSharedMemory);
  EXPECT_THROW(parse_transport("carrier pigeon"), Error);
  if (!transfer_available()) GTEST_SKIP() << "built without UCX";
  StateVault vault({.shape = small_shape(), .memory_bytes = 1});
  EXPECT_THROW(TransferServer(vault, {.listen = "127.0.0.1:0", .secret = "short"}), Error);
  EXPECT_THROW(TransferServer(vault, {.listen = "127.0.0.1", .secret = kSecret}), Error);
  EXPECT_THROW(TransferServer(vault, {.listen = "127.0.0.1:http!", .secret = kSecret}), Error);
  TransferServer server(vault, {.listen = "127.0.0.1:0", .secret = kSecret});
  EXPECT_THROW(TransferServer(vault, {.listen = server.address(), .secret = kSecret}), Error);
}

}  // namespace
}  // namespace peregrine::test
