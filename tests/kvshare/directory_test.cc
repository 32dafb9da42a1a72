// What every directory does: the rules of versions and owners, the same for all implementations,
// and Redis compared with the book in memory.
#include "kvshare/directory.h"

#include <gtest/gtest.h>

#include <random>

#include "kvshare/directory_book.h"
#include "kvshare/local_directory.h"
#include "kvshare/redis_directory.h"
#include "kvshare/redis_server.h"

namespace peregrine::test {
namespace {

constexpr std::chrono::milliseconds kPatient{60000};  // the machine may be busy

std::unique_ptr<RedisDirectory> redis_directory(const RedisServer& server, std::string owner,
                                                std::chrono::milliseconds alive = kPatient) {
  return std::make_unique<RedisDirectory>(RedisDirectoryOptions{.address = server.address(),
                                                                .owner = std::move(owner),
                                                                .limit = kPatient,
                                                                .alive = alive,
                                                                .notices = {}});
}

// Two servers' directories of one kind.
struct Pair {
  std::unique_ptr<RedisServer> redis;
  std::unique_ptr<Directory> a, b;
};

Pair make_pair_of(const std::string& kind) {
  Pair pair;
  if (kind == "redis") {
    pair.redis = std::make_unique<RedisServer>();
    pair.a = redis_directory(*pair.redis, "a");
    pair.b = redis_directory(*pair.redis, "b");
  } else {
    const auto shared = std::make_shared<LocalDirectory::Shared>();
    pair.a = std::make_unique<LocalDirectory>("a", DirectoryNotices{}, shared);
    pair.b = std::make_unique<LocalDirectory>("b", DirectoryNotices{}, shared);
  }
  return pair;
}

class DirectoryKinds : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Directory, DirectoryKinds, ::testing::Values("local", "redis"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(DirectoryKinds, VersionsGrowAndOldOnesAreStale) {
  const Pair pair = make_pair_of(GetParam());
  const std::string key = conversation_key("talk");
  const auto first = pair.a->look_up(key);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->version.sequence, 0u);
  EXPECT_EQ(first->owner, "");
  EXPECT_EQ(first->version.epoch.size(), 36u);
  EXPECT_EQ(pair.a->check(key, first->version), DirectoryOutcome::kStale) << "nobody has it";

  const DirectoryClaim won = pair.a->claim(key, first->version);
  ASSERT_EQ(won.outcome, DirectoryOutcome::kDone);
  EXPECT_EQ(won.version, (DirectoryVersion{first->version.epoch, 1}));
  EXPECT_EQ(pair.b->claim(key, first->version).outcome, DirectoryOutcome::kStale);
  EXPECT_EQ(pair.b->look_up(key), (DirectoryRecord{won.version, "a"}));
  EXPECT_EQ(pair.b->check(key, won.version), DirectoryOutcome::kDone);

  const DirectoryClaim next = pair.b->claim(key, won.version);
  ASSERT_EQ(next.outcome, DirectoryOutcome::kDone);
  EXPECT_EQ(next.version.sequence, 2u);
  EXPECT_EQ(pair.a->check(key, won.version), DirectoryOutcome::kStale);
  EXPECT_EQ(pair.a->look_up(key), (DirectoryRecord{next.version, "b"}));
  EXPECT_EQ(pair.a->claim(key, {"another epoch", 2}).outcome, DirectoryOutcome::kStale);
  EXPECT_EQ(pair.a->look_up(conversation_key("other"))->version.sequence, 0u);
}

TEST_P(DirectoryKinds, RecordsOfDeadOwnersNameNobodyAndCanBeClaimed) {
  Pair pair = make_pair_of(GetParam());
  const std::string key = conversation_key("talk");
  const DirectoryClaim won = pair.a->claim(key, pair.a->look_up(key)->version);
  pair.a.reset();  // leaves
  const auto seen = pair.b->look_up(key);
  ASSERT_TRUE(seen);
  EXPECT_EQ(*seen, (DirectoryRecord{won.version, ""}));
  EXPECT_EQ(pair.b->check(key, won.version), DirectoryOutcome::kStale);
  EXPECT_EQ(pair.b->claim(key, seen->version).version.sequence, 2u);
  EXPECT_EQ(pair.b->look_up(key)->owner, "b");
}

TEST(Directory, KeysAreHashesOfIds) {
  EXPECT_EQ(conversation_key("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_NE(random_epoch(), random_epoch());
}

TEST(DirectoryBook, RecordsExpireUnlessUsed) {
  DirectoryBook book("e");
  const auto day = static_cast<double>(kRecordExpirySeconds);
  book.claim("k", {"e", 0}, "a", 10 * day, 0);
  EXPECT_EQ(book.look_up("k", day - 1).version.sequence, 1u);
  EXPECT_EQ(book.look_up("k", 2 * day - 2).version.sequence, 1u) << "the look-up renewed it";
  EXPECT_EQ(book.look_up("k", 3 * day).version.sequence, 0u);
  EXPECT_EQ(book.records(), 0u);
}

// Any sequence of operations gives the same answers from Redis as from the book.
TEST(DirectoryBook, SaysWhatRedisSays) {
  RedisServer server;
  const std::vector<std::string> owners = {"a", "b", "c"};
  std::vector<std::unique_ptr<RedisDirectory>> directories;
  for (const std::string& owner : owners) directories.push_back(redis_directory(server, owner));
  DirectoryBook book(directories[0]->look_up("x")->version.epoch);
  for (const std::string& owner : owners) book.beat(owner, 1e9, 0);
  std::mt19937 random(7);
  std::vector<DirectoryVersion> versions = {book.look_up("x", 0).version, {"void", 1}};
  for (int i = 0; i < 2000; ++i) {
    const std::string key = "k" + std::to_string(random() % 4);
    Directory& directory = *directories[random() % owners.size()];
    const DirectoryVersion version = versions[random() % versions.size()];
    if (random() % 200 == 0) {
      server.command({"FLUSHALL"});
      book.restart_empty(directory.look_up("x")->version.epoch);
      for (const auto& d : directories)  // as their next heartbeats would
        server.command({"SET", "peregrine:alive:" + d->owner(), "1"});
      for (const std::string& owner : owners) book.beat(owner, 1e9, 0);
    }
    switch (random() % 3) {
      case 0: {
        const auto found = directory.look_up(key);
        ASSERT_EQ(found, book.look_up(key, 0)) << "operation " << i;
        versions.push_back(found->version);
        break;
      }
      case 1: {
        const DirectoryClaim claim = directory.claim(key, version);
        const DirectoryClaim expected = book.claim(key, version, directory.owner(), 1e9, 0);
        ASSERT_EQ(claim.outcome, expected.outcome) << "operation " << i;
        ASSERT_EQ(claim.version, expected.version);
        break;
      }
      default:
        ASSERT_EQ(directory.check(key, version), book.check(key, version, 0)) << "operation " << i;
    }
    if (versions.size() > 12) versions.erase(versions.begin() + static_cast<int>(random() % 8));
  }
}

}  // namespace
}  // namespace peregrine::test
