// Servers that share conversations through a real Redis: a conversation that goes round between
// them reads as on one server.
#include "kvshare/sharing.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>

#include "kvshare/local_directory.h"
#include "kvshare/redis_directory.h"
#include "kvshare/redis_server.h"
#include "server/server_fixture.h"

namespace peregrine::test {
namespace {

constexpr std::chrono::milliseconds kPatient{60000};

// Servers of one process; they read from each other's vaults as from another machine's.
class Cluster {
 public:
  struct Node {
    std::string address;
    std::unique_ptr<StateVault> vault;
    std::unique_ptr<Sharing> sharing;
    std::unique_ptr<Engine> engine;
    std::unique_ptr<Server> server;

    // Takes the place of a kill: what it announced leads nowhere.
    void stop() {
      server.reset();
      engine.reset();
      sharing.reset();
      vault.reset();
    }
  };

  explicit Cluster(std::string kind) : kind_(std::move(kind)) {
    if (kind_ == "redis") redis = std::make_unique<RedisServer>();
  }
  ~Cluster() {
    for (auto& node : nodes) node->stop();
  }

  Node& add(ServerOptions server_options = {}, const std::string& disk = {}) {
    Node& node = *nodes.emplace_back(std::make_unique<Node>());
    node.address = "node" + std::to_string(nodes.size());
    start(node, std::move(server_options), disk);
    return node;
  }

  void start(Node& node, ServerOptions server_options = {}, const std::string& disk = {}) {
    server_options.port = 0;
    server_options.model_name = "tiny";
    node.engine = std::make_unique<Engine>(
        tiny_model(), EngineOptions{.context_tokens = 4096, .kv_bytes = 32 << 20});
    node.vault = std::make_unique<StateVault>(VaultOptions{.shape = node.engine->state_shape(),
                                                           .memory_bytes = 64 << 20,
                                                           .directory = disk,
                                                           .disk_bytes = 64 << 20});
    SharingOptions options{
        .fetch = [this](const std::string& address, const std::string& key,
                        std::span<const int32_t> tokens,
                        int64_t min_tokens) { return fetch(address, key, tokens, min_tokens); },
        .address = node.address,
        .owner_pause = owner_pause};
    node.sharing = std::make_unique<Sharing>(
        *node.engine, *node.vault,
        [this](std::string owner, DirectoryNotices notices) -> std::unique_ptr<Directory> {
          if (kind_ == "redis")
            return std::make_unique<RedisDirectory>(
                RedisDirectoryOptions{.address = redis->address(),
                                      .owner = std::move(owner),
                                      .limit = limit,
                                      .notices = std::move(notices)});
          return std::make_unique<LocalDirectory>(std::move(owner), std::move(notices), shared_);
        },
        std::move(options));
    node.server = std::make_unique<Server>(server_options);
    node.server->serve(*node.engine, {}, node.sharing.get());
  }

  // When it returns the turn's state is announced, or it is known that it cannot be. `session`
  // empty: the body names the conversation.
  static nlohmann::json ask(const Node& node, const nlohmann::json& body,
                            const std::string& session) {
    const Answer answer =
        Client(node.server->port())
            .post("/v1/chat/completions", body.dump(),
                  session.empty() ? session : "X-Session-ID: " + session + "\r\n");
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json();
  }

  std::unique_ptr<RedisServer> redis;
  std::vector<std::unique_ptr<Node>> nodes;
  std::string fail_fetches;  // every fetch ends like this
  bool owner_fault = false;  // and is the owner's fault
  mutable std::atomic<int> fetches{0};
  std::chrono::milliseconds owner_pause{1000};
  std::chrono::milliseconds limit = kPatient;

 private:
  FetchedState fetch(const std::string& address, const std::string& key,
                     std::span<const int32_t> tokens, int64_t min_tokens) const {
    ++fetches;
    if (!fail_fetches.empty())
      return {.image = nullptr, .failure = fail_fetches, .owner_fault = owner_fault};
    for (const auto& node : nodes) {
      if (node->address != address) continue;
      if (!node->vault) return {.image = nullptr, .failure = "unreachable"};
      PinnedImage image = node->vault->pin(key);
      if (!image) return {.image = nullptr, .failure = "absent"};
      if (image->manifest().common_prefix(tokens) < min_tokens)
        return {.image = nullptr, .failure = "no prefix"};
      return {.image = image, .failure = {}, .bytes = image->bytes().size(), .seconds = 1e-3};
    }
    return {.image = nullptr, .failure = "unreachable"};
  }

  const std::string kind_;
  std::shared_ptr<LocalDirectory::Shared> shared_ = std::make_shared<LocalDirectory::Shared>();
};

nlohmann::json first_body() {
  return {{"messages", nlohmann::json::array()},
          {"temperature", 0.7},
          {"seed", 5},
          {"max_tokens", 120},
          {"thinking", {{"type", "disabled"}}}};
}

std::string question(int turn) {
  std::string text = "Question " + std::to_string(turn) + ": tell me more about it, please. ";
  if (turn == 0)  // long enough to be kept after the first turn
    for (int i = 0; i < 12; ++i) text += "Once upon a time there was a little town by the sea. ";
  return text;
}

void add_message(nlohmann::json& body, const std::string& role, const nlohmann::json& content) {
  body["messages"].push_back({{"role", role}, {"content", content}});
}

int64_t cached_tokens(const nlohmann::json& answer) {
  return answer["usage"]["prompt_tokens_details"]["cached_tokens"];
}

// Plays the turns on the cluster in turn and on one plain server; returns the share of prompt
// tokens after the first turn that were computed although earlier turns had them.
void play_and_compare(Cluster& cluster, int turns, const std::string& session) {
  RunningServer alone({}, {.context_tokens = 4096, .kv_bytes = 32 << 20});
  nlohmann::json body = first_body();
  int64_t repeated = 0, prompts = 0, before = 0;
  for (int turn = 0; turn < turns; ++turn) {
    add_message(body, "user", question(turn));
    const std::string text = body.dump();
    const Answer expected = Client(alone.port()).post("/v1/chat/completions", text);
    const nlohmann::json want = expected.json();
    const nlohmann::json got = cluster.ask(
        *cluster.nodes[static_cast<size_t>(turn) % cluster.nodes.size()], body, session);
    ASSERT_EQ(got["choices"], want["choices"]) << "turn " << turn;
    EXPECT_EQ(cached_tokens(got), cached_tokens(want)) << "turn " << turn;
    const int64_t prompt = got["usage"]["prompt_tokens"];
    if (turn > 0) {
      // All of the turn before but its last token should be there.
      repeated += std::max<int64_t>(0, before - 1 - cached_tokens(got));
      prompts += prompt;
    }
    before = prompt + got["usage"]["completion_tokens"].get<int64_t>();
    add_message(body, "assistant", got["choices"][0]["message"]["content"]);
  }
  EXPECT_LT(static_cast<double>(repeated), 0.02 * static_cast<double>(prompts));
  std::printf("%ld of %ld prompt tokens computed again\n", static_cast<long>(repeated),
              static_cast<long>(prompts));
}

class SharingKinds : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Sharing, SharingKinds, ::testing::Values("local", "redis"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(SharingKinds, ConversationGoesRoundAndReadsAsOnOneServer) {
  Cluster cluster(GetParam());
  for (int i = 0; i < 3; ++i) cluster.add();
  const int turns = GetParam() == std::string("redis") ? 20 : 6;
  play_and_compare(cluster, turns, "talk");
  int64_t fetched = 0;
  for (const auto& node : cluster.nodes) {
    EXPECT_EQ(node->engine->check_integrity(), "");
    fetched += node->sharing->stats().requests_from(StateSource::kRemote);
  }
  EXPECT_EQ(fetched, turns - 1);
}

TEST(Sharing, FailedFetchesCostTimeOnly) {
  Cluster cluster("local");
  cluster.add(), cluster.add();
  cluster.fail_fetches = "damaged";
  nlohmann::json body = first_body();
  body["temperature"] = 0;
  for (int turn = 0; turn < 4; ++turn) {
    add_message(body, "user", question(turn));
    const nlohmann::json got =
        cluster.ask(*cluster.nodes[static_cast<size_t>(turn) % 2], body, "talk");
    add_message(body, "assistant", got["choices"][0]["message"]["content"]);
  }
  EXPECT_GT(cluster.nodes[1]->sharing->stats().fetch_failures.at("damaged"), 0);
  EXPECT_EQ(cluster.nodes[1]->sharing->stats().requests_from(StateSource::kRemote), 0);
}

TEST(Sharing, OwnerThatDoesNotAnswerIsAskedOnceForAll) {
  Cluster cluster("local");
  cluster.owner_pause = std::chrono::hours(1);
  const Cluster::Node& owner = cluster.add();
  const Cluster::Node& other = cluster.add();
  cluster.fail_fetches = outcome_name(FetchOutcome::kDeadline);
  cluster.owner_fault = true;
  nlohmann::json body = first_body();
  body["max_tokens"] = 8;
  add_message(body, "user", question(0));
  for (const char* talk : {"a", "b", "c"}) Cluster::ask(owner, body, talk);
  add_message(body, "assistant", "Hi");
  add_message(body, "user", "And?");
  for (const char* talk : {"a", "b", "c"}) Cluster::ask(other, body, talk);
  EXPECT_EQ(cluster.fetches, 1);
  const SharingStats stats = other.sharing->stats();
  EXPECT_EQ(stats.fetch_failures.at("deadline"), 1);
  EXPECT_GE(stats.fetch_failures.at("paused"), 2);
}

TEST(Sharing, StateThatChangedInMemoryIsNotUsed) {
  Cluster cluster("local");
  const Cluster::Node& node = cluster.add();
  nlohmann::json body = first_body();
  body["max_tokens"] = 8;
  add_message(body, "user", question(0));
  const std::string answer = Cluster::ask(node, body, "talk")["choices"].dump();
  const std::string key = node.vault->entries().at(0).key;
  {
    const PinnedImage image = node.vault->pin(key);
    const auto bytes = const_cast<StateImage&>(*image).room(image->manifest().ranges(1).front());
    bytes[1] ^= std::byte{8};
  }
  // Another engine with the same vault: its own cache is empty.
  Request request{.prompt = node.vault->pin(key)->manifest().tokens()};
  Engine fresh(tiny_model(), EngineOptions{.context_tokens = 4096, .kv_bytes = 32 << 20});
  Sharing sharing(fresh, *node.vault,
                  [](std::string owner, DirectoryNotices notices) -> std::unique_ptr<Directory> {
                    return std::make_unique<LocalDirectory>(std::move(owner), std::move(notices));
                  },
                  {});
  EXPECT_EQ(sharing.prepare(key, request), StateSource::kNone);
  EXPECT_EQ(request.state, nullptr);
  EXPECT_EQ(sharing.stats().damaged_in_memory, 1);
  EXPECT_FALSE(node.vault->find(key));
}

TEST(Sharing, OwnerThatIsGoneAndRedisThatIsGoneCostTimeOnly) {
  Cluster cluster("redis");
  cluster.limit = std::chrono::milliseconds(2000);
  Cluster::Node& a = cluster.add();
  Cluster::Node& b = cluster.add();
  nlohmann::json body = first_body();
  const auto turn = [&](Cluster::Node& node, int number) {
    add_message(body, "user", question(number));
    const nlohmann::json got = cluster.ask(node, body, "talk");
    add_message(body, "assistant", got["choices"][0]["message"]["content"]);
  };
  turn(a, 0);
  a.stop();
  turn(b, 1);
  EXPECT_EQ(b.sharing->stats().requests_from(StateSource::kRemote), 0);
  cluster.redis->pause();
  turn(b, 2);
  EXPECT_GT(b.sharing->stats().directory_failures, 0);
  cluster.redis->resume();
  cluster.redis->restart_empty();
  wait_until([&] { return b.sharing->stats().directory_available; });
  turn(b, 3);
  cluster.start(a);
  turn(a, 4);
  EXPECT_EQ(a.sharing->stats().requests_from(StateSource::kRemote) +
                b.sharing->stats().requests_from(StateSource::kRemote),
            1)
      << "the new directory knows b's state";
}

TEST(Sharing, RestartedServerFindsItsFilesAndAnnouncesThem) {
  Cluster cluster("redis");
  const std::string disk = testing::TempDir() + "/peregrine-sharing-" + std::to_string(getpid());
  Cluster::Node& a = cluster.add({}, disk);
  Cluster::Node& b = cluster.add();
  nlohmann::json body = first_body();
  add_message(body, "user", question(0));
  const nlohmann::json first = cluster.ask(a, body, "talk");
  a.stop();
  cluster.start(a, {}, disk);
  wait_until([&] { return a.sharing->stats().reclaimed == 1; });
  add_message(body, "assistant", first["choices"][0]["message"]["content"]);
  add_message(body, "user", question(1));
  EXPECT_GT(cached_tokens(cluster.ask(b, body, "talk")), 0);
  EXPECT_EQ(b.sharing->stats().requests_from(StateSource::kRemote), 1);
  std::filesystem::remove_all(disk);
}

TEST(Sharing, StrictServerWantsANameForASecondTurn) {
  Cluster cluster("local");
  Cluster::Node& node = cluster.add({.strict_conversations = true});
  nlohmann::json body = first_body();
  add_message(body, "user", question(0));
  EXPECT_EQ(Client(node.server->port()).post("/v1/chat/completions", body.dump()).status, 200);
  add_message(body, "assistant", "Hi");
  add_message(body, "user", "And?");
  const Answer refused = Client(node.server->port()).post("/v1/chat/completions", body.dump());
  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(refused.body.find("X-Session-ID"), std::string::npos);
  cluster.ask(node, body, "named");
  body["prompt_cache_key"] = "named in the body";
  Cluster::ask(node, body, "");
  // The same name, wherever it stands, is the same conversation.
  body.erase("prompt_cache_key");
  Cluster::ask(node, body, "named in the body");
  EXPECT_EQ(node.vault->entries().size(), 2u);
}

TEST(Sharing, MetricsSayWhatHappenedAndNoIds) {
  Cluster cluster("local");
  Cluster::Node& node = cluster.add();
  nlohmann::json body = first_body();
  add_message(body, "user", question(0));
  cluster.ask(node, body, "secret-name");
  const std::string text = Client(node.server->port()).get("/metrics").body;
  EXPECT_NE(text.find("peregrine_sharing_claims_total 1"), std::string::npos);
  EXPECT_NE(text.find("peregrine_sharing_requests_total{state=\"none\"} 1"), std::string::npos);
  EXPECT_NE(text.find("peregrine_sharing_directory_available 1"), std::string::npos);
  for (const char* cause : {"damaged", "other_engine", "refused"})
    EXPECT_NE(text.find(std::string("fetch_failures_total{cause=\"") + cause + "\"} 0"),
              std::string::npos);
  EXPECT_EQ(text.find("secret-name"), std::string::npos);
}

}  // namespace
}  // namespace peregrine::test
