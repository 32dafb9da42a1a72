// peregrine kv on files of a vault and records of a real Redis.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "apps/program.h"
#include "kvshare/redis_directory.h"
#include "kvshare/redis_server.h"
#include "kvshare/state_rig.h"
#include "kvshare/state_vault.h"

namespace peregrine::test {
namespace {

const std::string kFirst = "12" + std::string(62, 'a'), kSecond = "13" + std::string(62, 'b');

class KvFiles : public testing::Test {
 protected:
  KvFiles() {
    StateVault vault({.shape = small_shape(),
                      .memory_bytes = 1 << 24,
                      .directory = folder_,
                      .disk_bytes = 1 << 24});
    for (const std::string& key : {kFirst, kSecond})
      vault.put(key, {"e", 7},
                StateImage::build(random_state(small_shape(), 300, 1), small_shape()));
  }
  ~KvFiles() override { std::filesystem::remove_all(folder_); }

  ProgramResult kv(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "kv");
    arguments.insert(arguments.end(), {"--kv-dir", folder_});
    return run_program(arguments);
  }
  std::string file_of(const std::string& key) const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      if (entry.path().string().find(key) != std::string::npos) return entry.path();
    return {};
  }

  const std::string folder_ = testing::TempDir() + "/peregrine-kv-" + std::to_string(getpid());
};

TEST_F(KvFiles, AreListedShownVerifiedAndDropped) {
  const ProgramResult all = kv({"ls"});
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_NE(all.out.find(kFirst + " version 7"), std::string::npos) << all.out;
  EXPECT_NE(all.out.find(kSecond + " version 7"), std::string::npos);
  EXPECT_NE(all.out.find("300 tokens"), std::string::npos);

  const ProgramResult one = kv({"show", "13"});
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_NE(one.out.find("conversation " + kSecond), std::string::npos);
  EXPECT_NE(one.out.find("rows of 288 bytes, 2 tokens each"), std::string::npos) << one.out;

  EXPECT_NE(kv({"verify"}).out.find("2 files, 0 bad"), std::string::npos);
  std::fstream file(file_of(kFirst), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-8000, std::ios::end);  // zeros fill the last page
  file.put('!');
  file.close();
  const ProgramResult damaged = kv({"verify"});
  EXPECT_EQ(damaged.code, 1);
  EXPECT_NE(damaged.out.find("2 files, 1 bad"), std::string::npos) << damaged.out;
  EXPECT_NE(damaged.out.find("is damaged"), std::string::npos);

  EXPECT_EQ(kv({"drop", kFirst}).code, 0);
  EXPECT_EQ(file_of(kFirst), "");
  EXPECT_NE(file_of(kSecond), "");
  EXPECT_EQ(kv({"verify"}).code, 0);
}

TEST_F(KvFiles, WrongRequestsEndInASentence) {
  for (const std::vector<std::string>& wrong :
       {std::vector<std::string>{"show", "1"}, {"show", "ff"}, {"drop", "xyz"}, {"show"}}) {
    const ProgramResult result = kv(wrong);
    EXPECT_EQ(result.code, 1);
    EXPECT_EQ(result.error_lines(), 1u) << result.err;
  }
  EXPECT_EQ(run_program({"kv", "ls"}).code, 1);
  EXPECT_EQ(run_program({"kv", "ls", "--kv-dir", folder_ + "/absent"}).code, 1);
}

TEST(KvRecords, AreListedShownAndDropped) {
  const RedisServer redis;
  const auto kv = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "kv");
    arguments.insert(arguments.end(), {"--kv-directory", redis.url()});
    return run_program(arguments);
  };
  RedisDirectory directory(
      {.address = redis.address(), .owner = "host:1#x", .limit = std::chrono::seconds(60)});
  for (const std::string& key : {kFirst, kSecond}) {
    const auto record = directory.look_up(key);
    ASSERT_TRUE(record);
    ASSERT_EQ(directory.claim(key, record->version).outcome, DirectoryOutcome::kDone);
  }
  EXPECT_NE(kv({"ls"}).out.find("record " + kSecond + " version 1, owner host:1#x, expires in"),
            std::string::npos);
  EXPECT_NE(kv({"show", "12"}).out.find("version 1 of epoch"), std::string::npos);
  EXPECT_EQ(kv({"drop", "12"}).code, 0);
  EXPECT_EQ(directory.look_up(kFirst)->owner, "");
  EXPECT_EQ(directory.look_up(kSecond)->owner, "host:1#x");
}

}  // namespace
}  // namespace peregrine::test
