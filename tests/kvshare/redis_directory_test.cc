// Redis that is flushed, restarted, paused or gone: operations answer "unavailable" instead of
// waiting, and everything works again afterwards.
#include "kvshare/redis_directory.h"

#include <gtest/gtest.h>

#include <mutex>

#include "kvshare/redis_server.h"

namespace peregrine::test {
namespace {

using std::chrono::milliseconds;

RedisDirectoryOptions options_for(const RedisAddress& address, std::string owner = "a") {
  return {
      .address = address, .owner = std::move(owner), .limit = milliseconds(5000), .notices = {}};
}

TEST(RedisDirectory, LoadsItsScriptsAgainAfterTheyWereFlushed) {
  RedisServer server;
  RedisDirectory directory(options_for(server.address()));
  const auto seen = directory.look_up("k");
  ASSERT_TRUE(seen);
  server.command({"SCRIPT", "FLUSH"});
  EXPECT_EQ(directory.claim("k", seen->version).outcome, DirectoryOutcome::kDone);
  EXPECT_TRUE(directory.available());
}

TEST(RedisDirectory, RestartedEmptyIsANewEpoch) {
  RedisServer server;
  std::atomic<int> new_epochs{0};
  RedisDirectoryOptions options = options_for(server.address());
  options.notices.new_epoch = [&] { ++new_epochs; };
  RedisDirectory directory(options);
  const auto before = directory.look_up("k");
  ASSERT_TRUE(before);
  const DirectoryClaim won = directory.claim("k", before->version);
  ASSERT_EQ(won.outcome, DirectoryOutcome::kDone);
  server.restart_empty();
  std::optional<DirectoryRecord> after;
  wait_until([&] { return (after = directory.look_up("k")).has_value(); });
  EXPECT_NE(after->version.epoch, before->version.epoch);
  EXPECT_EQ(after->version.sequence, 0u);
  EXPECT_EQ(directory.claim("k", won.version).outcome, DirectoryOutcome::kStale);
  EXPECT_EQ(directory.check("k", won.version), DirectoryOutcome::kStale);
  EXPECT_EQ(directory.claim("k", after->version).outcome, DirectoryOutcome::kDone);
  EXPECT_EQ(new_epochs, 1);
}

TEST(RedisDirectory, PausedOneIsUnavailableAndComesBack) {
  RedisServer server;
  RedisDirectoryOptions options = options_for(server.address());
  options.limit = milliseconds(50);
  RedisDirectory directory(options);
  std::optional<DirectoryRecord> seen;
  wait_until([&] { return (seen = directory.look_up("k")).has_value(); });
  server.pause();
  EXPECT_FALSE(directory.look_up("k"));  // no hang
  wait_until([&] { return !directory.available(); });
  EXPECT_EQ(directory.claim("k", seen->version).outcome, DirectoryOutcome::kUnavailable);
  EXPECT_EQ(directory.check("k", seen->version), DirectoryOutcome::kUnavailable);
  server.resume();
  wait_until([&] { return directory.look_up("k").has_value(); });
}

TEST(RedisDirectory, WithoutARedisIsUnavailable) {
  RedisDirectory directory(options_for(RedisAddress::parse("unix:/nowhere/socket")));
  EXPECT_FALSE(directory.look_up("k"));
  EXPECT_FALSE(directory.available());
}

TEST(RedisDirectory, TellsOthersOfAClaim) {
  RedisServer server;
  std::mutex mutex;
  std::vector<std::pair<std::string, std::string>> notices;
  RedisDirectoryOptions options = options_for(server.address(), "listener");
  options.notices.claimed = [&](const std::string& key, const std::string& owner) {
    const std::lock_guard lock(mutex);
    notices.emplace_back(key, owner);
  };
  RedisDirectory listener(options);
  RedisDirectory claimer(options_for(server.address(), "claimer"));
  // The subscription may begin after the first claims.
  wait_until([&] {
    listener.claim("mine", listener.look_up("mine")->version);
    claimer.claim("k", claimer.look_up("k")->version);
    const std::lock_guard lock(mutex);
    return !notices.empty();
  });
  const std::lock_guard lock(mutex);
  for (const auto& notice : notices)
    EXPECT_EQ(notice, (std::pair<std::string, std::string>("k", "claimer")));
}

TEST(RedisDirectory, OwnerWithoutHeartbeatCountsAsDead) {
  RedisServer server;
  RedisDirectory a(options_for(server.address(), "a"));
  RedisDirectory b(options_for(server.address(), "b"));
  ASSERT_EQ(a.claim("k", a.look_up("k")->version).outcome, DirectoryOutcome::kDone);
  EXPECT_EQ(b.look_up("k")->owner, "a");
  server.command({"PEXPIRE", "peregrine:alive:a", "0"});  // as after a kill -9
  // A heartbeat of the living one may come between the two commands; not after every attempt.
  wait_until([&] {
    server.command({"DEL", "peregrine:alive:a"});
    return b.look_up("k")->owner.empty();
  });
}

TEST(RedisAddress, ReadsUrls) {
  const RedisAddress full = RedisAddress::parse("redis://user:se@cret@host:1234/5");
  EXPECT_EQ(full.host, "host");
  EXPECT_EQ(full.port, 1234);
  EXPECT_EQ(full.database, 5);
  EXPECT_EQ(full.user, "user");
  EXPECT_EQ(full.password, "se@cret");
  EXPECT_EQ(full.name(), "host:1234");
  EXPECT_EQ(RedisAddress::parse("redis://[::1]:7").host, "::1");
  EXPECT_EQ(RedisAddress::parse("redis://h").port, 6379);
  EXPECT_EQ(RedisAddress::parse("unix:/a/b").unix_path, "/a/b");
  for (const char* wrong : {"", "http://h", "redis://", "redis://h:0", "redis://h:70000",
                            "redis://h:x", "redis://user@h", "redis://h/x", "unix:relative"})
    EXPECT_THROW(RedisAddress::parse(wrong), Error) << wrong;
}

}  // namespace
}  // namespace peregrine::test
