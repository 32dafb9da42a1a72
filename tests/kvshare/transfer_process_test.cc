// Owner and reader in processes of their own, one of which is stopped or killed: the other goes on
// by its deadline and gives back what it held. The second process is this program again, running
// one of the disabled tests below.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kvshare/state_rig.h"
#include "kvshare/transfer.h"

extern char** environ;  // NOLINT

namespace peregrine::test {
namespace {

using std::chrono::milliseconds;

const char* const kSecret = "a secret that all members share";
const std::string kKey(64, '1');
constexpr int64_t kTokens = 200'000;  // 59 MB
constexpr milliseconds kLong{60'000};

bool eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 200'000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return false;
}

SavedState large_state() {
  const StateShape shape = small_shape();
  SavedState state;
  for (int64_t i = 0; i < kTokens; ++i) state.tokens.push_back(static_cast<int32_t>(i % 997));
  for (size_t i = 0; i < shape.sources.size(); ++i) {
    const auto rows = static_cast<uint64_t>(shape.rows(i, kTokens));
    state.sources.push_back(
        {std::vector<std::byte>(rows * shape.sources[i].main_row_bytes, std::byte{3}),
         std::vector<std::byte>(rows * shape.sources[i].index_row_bytes, std::byte{5})});
  }
  return state;
}

std::unique_ptr<StateVault> vault_with_state() {
  auto vault =
      std::make_unique<StateVault>(VaultOptions{.shape = small_shape(), .memory_bytes = 1u << 30});
  vault->put(kKey, {"e", 1}, StateImage::build(large_state(), small_shape()));
  return vault;
}

FetchResult fetch(TransferClient& client, const std::string& address,
                  const std::vector<int32_t>& tokens, milliseconds deadline = kLong) {
  return client.fetch({.address = address, .key = kKey, .tokens = tokens, .deadline = deadline});
}

// This program with one disabled test; `argument` and the transport go by environment.
class Process {
 public:
  Process(const std::string& test, PeerTransport transport, const std::string& argument) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    out_ = ends[0];
    ::setenv("PEREGRINE_TEST_ARGUMENT", argument.c_str(), 1);
    ::setenv("PEREGRINE_TEST_TRANSPORT", transport_name(transport), 1);
    std::string filter = "--gtest_filter=TransferProcess.DISABLED_" + test;
    std::string disabled = "--gtest_also_run_disabled_tests";
    std::string program = "transfer_process";
    std::array<char*, 4> arguments{program.data(), filter.data(), disabled.data(), nullptr};
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&files, ends[1], 3);
    EXPECT_EQ(::posix_spawn(&pid_, "/proc/self/exe", &files, nullptr, arguments.data(), environ),
              0);
    posix_spawn_file_actions_destroy(&files);
    ::close(ends[1]);
  }
  ~Process() {
    signal(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(out_);
  }
  void signal(int number) const { ::kill(pid_, number); }
  std::string line() const {
    std::string text;
    for (char c = 0; ::read(out_, &c, 1) == 1 && c != '\n';) text += c;
    return text;
  }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
};

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}
void say_line(std::string text) {
  text += '\n';
  [[maybe_unused]] const ssize_t n = ::write(3, text.data(), text.size());
}
PeerTransport transport_of_process() {
  return parse_transport(environment("PEREGRINE_TEST_TRANSPORT"));
}

TEST(TransferProcess, DISABLED_Owner) {
  const auto vault = vault_with_state();
  const TransferServer server(
      *vault, {.listen = "127.0.0.1:0", .secret = kSecret, .transport = transport_of_process()});
  say_line(server.address());
  for (;;) ::pause();
}

TEST(TransferProcess, DISABLED_Reader) {
  TransferClient client(
      {.shape = small_shape(), .secret = kSecret, .transport = transport_of_process()});
  const auto tokens = large_state().tokens;
  for (;;)
    say_line(outcome_name(fetch(client, environment("PEREGRINE_TEST_ARGUMENT"), tokens).outcome));
}

class TransferProcesses : public testing::TestWithParam<PeerTransport> {
 protected:
  void SetUp() override {
    if (!transfer_available()) GTEST_SKIP() << "built without UCX";
    client_ = std::make_unique<TransferClient>(
        TransferClientOptions{.shape = small_shape(), .secret = kSecret, .transport = GetParam()});
  }
  // Nothing is left of a fetch.
  void expect_clean() {
    EXPECT_TRUE(eventually([&] { return client_->memory_bytes() == 0; }));
  }

  const std::vector<int32_t> tokens_ = large_state().tokens;
  std::unique_ptr<TransferClient> client_;
};

INSTANTIATE_TEST_SUITE_P(Transports, TransferProcesses,
                         testing::Values(PeerTransport::kTcp, PeerTransport::kSharedMemory),
                         [](const testing::TestParamInfo<PeerTransport>& info) {
                           return std::string(transport_name(info.param));
                         });

TEST_P(TransferProcesses, StateArrivesFromAnotherProcess) {
  const Process owner("Owner", GetParam(), "");
  FetchResult result = fetch(*client_, owner.line(), tokens_);
  ASSERT_EQ(result.outcome, FetchOutcome::kFetched) << result.message;
  EXPECT_EQ(result.over_shared_memory, GetParam() == PeerTransport::kSharedMemory);
  expect_same(result.image->state(kTokens), large_state());
  result.image.reset();
  expect_clean();
}

TEST_P(TransferProcesses, StoppedOwnerCostsTheDeadline) {
  const Process owner("Owner", GetParam(), "");
  const std::string address = owner.line();
  ASSERT_EQ(fetch(*client_, address, tokens_).outcome, FetchOutcome::kFetched);
  owner.signal(SIGSTOP);
  // Through the open connection, and through a new one.
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(fetch(*client_, address, tokens_, milliseconds(300)).outcome,
              FetchOutcome::kDeadline);
  expect_clean();
  owner.signal(SIGCONT);
  EXPECT_EQ(fetch(*client_, address, tokens_).outcome, FetchOutcome::kFetched);
}

TEST_P(TransferProcesses, KilledOwnerEndsTheFetch) {
  const Process owner("Owner", GetParam(), "");
  const std::string address = owner.line();
  FetchResult result;
  std::thread fetcher([&] { result = fetch(*client_, address, tokens_); });
  eventually([&] { return client_->memory_bytes() > 2'000'000; });  // the manifest is there
  owner.signal(SIGKILL);
  fetcher.join();
  // It may have been quicker than the signal; then it is whole.
  if (result.outcome == FetchOutcome::kFetched)
    expect_same(result.image->state(kTokens), large_state());
  else
    EXPECT_EQ(result.outcome, FetchOutcome::kUnreachable) << result.message;
  result.image.reset();
  EXPECT_EQ(fetch(*client_, address, tokens_).outcome, FetchOutcome::kUnreachable);
  expect_clean();
}

TEST_P(TransferProcesses, KilledReaderLetsGoOfTheImage) {
  const auto vault = vault_with_state();
  const TransferServer server(
      *vault, {.listen = "127.0.0.1:0", .secret = kSecret, .transport = GetParam()});
  {
    const Process reader("Reader", GetParam(), server.address());
    EXPECT_EQ(reader.line(), "fetched");
    EXPECT_TRUE(eventually([&] { return vault->stats().pins > 0; }));
    reader.signal(SIGKILL);
  }
  EXPECT_TRUE(eventually([&] { return server.stats().peers == 0; }));
  EXPECT_TRUE(eventually([&] { return vault->stats().pins == 0; }));
  EXPECT_EQ(fetch(*client_, server.address(), tokens_).outcome, FetchOutcome::kFetched);
}

}  // namespace
}  // namespace peregrine::test
