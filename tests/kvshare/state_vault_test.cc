// The tiers: what they keep, what they give up, and that no fault of a file reaches a reader.
#include "kvshare/state_vault.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <signal.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/temporary_directory.h"
#include "kvshare/state_rig.h"
#include "peregrine/error.h"

namespace peregrine::test {
namespace {

namespace fs = std::filesystem;

const char* const kEpoch = "0b5c8a3e-9d6f-4c1b-8a7e-2f3d4c5b6a79";
constexpr int64_t kTokens = 40;

std::string key_of(int i) { return fmt::format("{:064x}", i); }
DirectoryVersion version(uint64_t sequence) { return {kEpoch, sequence}; }

// Warnings while it exists.
class LogCapture {
 public:
  LogCapture() : before_(spdlog::default_logger()) {
    auto logger = std::make_shared<spdlog::logger>(
        "", std::make_shared<spdlog::sinks::ostream_sink_mt>(text_));
    logger->set_level(spdlog::level::warn);
    spdlog::set_default_logger(logger);
  }
  ~LogCapture() { spdlog::set_default_logger(before_); }
  int lines() const {
    const std::string text = text_.str();
    return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::shared_ptr<spdlog::logger> before_;
};

class StateVaultTest : public testing::Test {
 protected:
  StateImage image(int i) const {
    return StateImage::build(random_state(shape_, kTokens, static_cast<uint64_t>(i)), shape_);
  }
  VaultOptions options(int in_memory, int on_disk) const {
    return {.shape = shape_,
            .memory_bytes = static_cast<uint64_t>(in_memory) * image_bytes_,
            .directory = directory_.path(),
            .disk_bytes = static_cast<uint64_t>(on_disk) * image_bytes_};
  }
  std::vector<std::string> files() const {
    std::vector<std::string> paths;
    for (const auto& at : fs::directory_iterator(directory_.path()))
      paths.push_back(at.path().string());
    std::sort(paths.begin(), paths.end());
    return paths;
  }
  // One file: state i under key i.
  std::string leave_file(int i = 1) const {
    {
      StateVault vault(options(1, 4));
      vault.put(key_of(i), version(1), image(i));
    }
    for (const std::string& path : files())
      if (path.find(key_of(i)) != std::string::npos) return path;
    return "";
  }
  void expect_state(const PinnedImage& image, int i) const {
    ASSERT_NE(image, nullptr);
    expect_same(image->state(kTokens), random_state(shape_, kTokens, static_cast<uint64_t>(i)));
  }

  const StateShape shape_ = small_shape();
  const uint64_t image_bytes_ = image(1).manifest().image_bytes();
  TemporaryDirectory directory_;
};

TEST_F(StateVaultTest, KeepsTheLatestVersionOfAConversation) {
  StateVault vault(options(4, 0));
  EXPECT_EQ(vault.pin(key_of(1)), nullptr);
  EXPECT_TRUE(vault.put(key_of(1), version(3), image(1)));
  EXPECT_TRUE(vault.put(key_of(1), version(4), image(2)));
  expect_state(vault.pin(key_of(1)), 2);
  EXPECT_FALSE(vault.put(key_of(1), version(3), image(1)));
  expect_state(vault.pin(key_of(1)), 2);
  // Another epoch: the directory began anew, sequences do not compare.
  EXPECT_TRUE(vault.put(key_of(1), {"ffff", 1}, image(3)));
  expect_state(vault.pin(key_of(1)), 3);
  EXPECT_EQ(vault.stats().entries, 1);
  EXPECT_EQ(vault.stats().memory_bytes, image_bytes_);
  EXPECT_EQ(vault.find(key_of(1))->version, (DirectoryVersion{"ffff", 1}));
  vault.drop(key_of(1));
  EXPECT_EQ(vault.pin(key_of(1)), nullptr);
  EXPECT_EQ(vault.stats().memory_bytes, 0u);
}

TEST_F(StateVaultTest, LeastRecentlyUsedGoesToAFileAndComesBack) {
  StateVault vault(options(2, 8));
  vault.put(key_of(1), version(1), image(1));
  vault.put(key_of(2), version(1), image(2));
  vault.pin(key_of(1));
  vault.put(key_of(3), version(1), image(3));
  EXPECT_TRUE(vault.find(key_of(1))->in_memory);
  EXPECT_FALSE(vault.find(key_of(2))->in_memory);
  EXPECT_TRUE(vault.find(key_of(2))->on_disk);
  ASSERT_EQ(files().size(), 1u);
  EXPECT_EQ(fs::file_size(files()[0]), image_bytes_);

  expect_state(vault.pin(key_of(2)), 2);
  EXPECT_FALSE(vault.find(key_of(1))->in_memory);
  EXPECT_EQ(vault.stats().memory_bytes, 2 * image_bytes_);
  EXPECT_EQ(vault.stats().disk_bytes, 2 * image_bytes_);
  EXPECT_EQ(vault.stats().files_written, 2);
  expect_state(vault.pin(key_of(1)), 1);
  EXPECT_FALSE(vault.find(key_of(3))->in_memory);
  EXPECT_EQ(vault.stats().files_written, 3);
  // All have files now: no need to write them again.
  for (const int i : {3, 2, 1}) expect_state(vault.pin(key_of(i)), i);
  EXPECT_EQ(vault.stats().files_written, 3);
  EXPECT_EQ(vault.stats().files_read, 5);
}

TEST_F(StateVaultTest, FilesHoldTheBytesOfMemory) {
  const std::string path = leave_file();
  std::ifstream in(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(in), {});
  const StateImage expected = image(1);
  ASSERT_EQ(bytes.size(), expected.bytes().size());
  EXPECT_EQ(std::memcmp(bytes.data(), expected.bytes().data(), bytes.size()), 0);
}

TEST_F(StateVaultTest, WithoutFilesTheOldestIsGivenUp) {
  auto memory_only = options(2, 0);
  memory_only.directory.clear();
  StateVault vault(memory_only);
  for (const int i : {1, 2, 3}) vault.put(key_of(i), version(1), image(i));
  EXPECT_EQ(vault.pin(key_of(1)), nullptr);
  expect_state(vault.pin(key_of(2)), 2);
  EXPECT_EQ(vault.stats().evictions, 1);
  EXPECT_EQ(vault.stats().failures, 0);
}

TEST_F(StateVaultTest, DiskBudgetGivesUpTheLeastRecentlyUsedFile) {
  StateVault vault(options(1, 2));
  for (const int i : {1, 2, 3}) vault.put(key_of(i), version(1), image(i));
  expect_state(vault.pin(key_of(1)), 1);  // and 3 goes to a file, 2's
  EXPECT_EQ(vault.pin(key_of(2)), nullptr);
  expect_state(vault.pin(key_of(3)), 3);
  EXPECT_EQ(files().size(), 2u);
  EXPECT_EQ(vault.stats().disk_bytes, 2 * image_bytes_);
}

TEST_F(StateVaultTest, PinnedImageStaysWhateverHappensToItsEntry) {
  StateVault vault(options(2, 0));
  vault.put(key_of(1), version(1), image(1));
  vault.put(key_of(2), version(1), image(2));
  PinnedImage evictable = vault.pin(key_of(1));
  PinnedImage replaced = vault.pin(key_of(2));
  // Nothing can leave, and there is no room beyond the budget.
  EXPECT_FALSE(vault.put(key_of(3), version(1), image(3)));
  EXPECT_EQ(vault.stats().memory_bytes, 2 * image_bytes_);
  EXPECT_EQ(vault.find(key_of(1))->pins, 1);

  vault.drop(key_of(1));
  EXPECT_EQ(vault.pin(key_of(1)), nullptr);
  EXPECT_FALSE(vault.put(key_of(2), version(2), image(4)));  // counts until its reader is done
  EXPECT_EQ(vault.stats().memory_bytes, 2 * image_bytes_);
  EXPECT_EQ(vault.stats().pins, 2);
  expect_state(evictable, 1);
  expect_state(replaced, 2);
  evictable.reset();
  EXPECT_EQ(vault.stats().memory_bytes, image_bytes_);
  EXPECT_TRUE(vault.put(key_of(3), version(1), image(3)));
  replaced.reset();
  EXPECT_EQ(vault.stats().memory_bytes, image_bytes_);
  EXPECT_EQ(vault.stats().pins, 0);
}

TEST_F(StateVaultTest, PinOutlivesTheVault) {
  auto vault = std::make_unique<StateVault>(options(2, 0));
  vault->put(key_of(1), version(1), image(1));
  PinnedImage pin = vault->pin(key_of(1));
  vault.reset();
  expect_state(pin, 1);
}

TEST_F(StateVaultTest, WithAllMemoryPinnedANewImageGoesToAFile) {
  StateVault vault(options(1, 4));
  vault.put(key_of(1), version(1), image(1));
  PinnedImage pin = vault.pin(key_of(1));
  EXPECT_TRUE(vault.put(key_of(2), version(1), image(2)));
  EXPECT_FALSE(vault.find(key_of(2))->in_memory);
  EXPECT_EQ(vault.pin(key_of(2)), nullptr);  // no room to read it into
  EXPECT_TRUE(vault.find(key_of(2))->on_disk);
  pin.reset();
  expect_state(vault.pin(key_of(2)), 2);
}

TEST_F(StateVaultTest, RestartFindsItsFiles) {
  {
    StateVault vault(options(2, 8));
    for (const int i : {1, 2, 3})
      vault.put(key_of(i), version(static_cast<uint64_t>(10 + i)), image(i));
  }
  EXPECT_EQ(files().size(), 3u);
  StateVault vault(options(2, 8));
  EXPECT_EQ(vault.stats().memory_bytes, 0u);
  const auto entries = vault.entries();
  ASSERT_EQ(entries.size(), 3u);
  for (int i = 1; i <= 3; ++i) {
    const VaultEntry& entry = entries[static_cast<size_t>(i - 1)];
    EXPECT_EQ(entry.key, key_of(i));
    EXPECT_EQ(entry.version, version(static_cast<uint64_t>(10 + i)));
    EXPECT_EQ(entry.tokens, kTokens);
    EXPECT_EQ(entry.bytes, image_bytes_);
    expect_state(vault.pin(key_of(i)), i);
  }
  // Claimed again, under the new directory's version; that too survives.
  EXPECT_TRUE(vault.relabel(key_of(2), {"abcd", 1}));
  EXPECT_FALSE(vault.relabel(key_of(9), version(1)));
  EXPECT_EQ(vault.stats().failures, 0);
  StateVault again(options(2, 8));
  EXPECT_EQ(again.find(key_of(2))->version, (DirectoryVersion{"abcd", 1}));
}

TEST_F(StateVaultTest, RestartHonoursASmallerBudgetAndRemovesLeftovers) {
  {
    StateVault vault(options(3, 8));
    for (const int i : {1, 2, 3}) vault.put(key_of(i), version(1), image(i));
  }
  std::ofstream(files()[0] + ".part") << "half";
  const StateVault vault(options(3, 1));
  EXPECT_EQ(vault.stats().entries, 1);
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(StateVaultTest, OtherEnginesFilesStayUntouched) {
  const std::string path = leave_file();
  auto other = options(2, 8);
  other.shape.fingerprint.fill(std::byte{0x77});
  {
    const LogCapture log;
    StateVault vault(other);
    EXPECT_EQ(vault.stats().entries, 0);
    EXPECT_EQ(log.lines(), 0);
  }
  EXPECT_TRUE(fs::exists(path));
  // Under a name that claims to be this engine's it is found out.
  std::string name = path;
  name.replace(name.find("5a5a5a5a5a5a5a5a"), 16, "7777777777777777");
  fs::rename(path, name);
  const LogCapture log;
  StateVault vault(other);
  EXPECT_EQ(vault.stats().entries, 0);
  EXPECT_EQ(vault.stats().failures, 1);
  EXPECT_NE(log.text().find("has the fingerprint of another engine"), std::string::npos);
  EXPECT_TRUE(files().empty());
}

// Each fault is put into a file behind the vault's back: the pin gives nothing, one warning.
class StateVaultFault : public StateVaultTest {
 protected:
  void expect_loss(const std::function<void(const std::string&)>& damage) {
    const std::string path = leave_file(1);
    leave_file(2);
    StateVault vault(options(2, 8));
    ASSERT_EQ(vault.stats().entries, 2);
    damage(path);
    const LogCapture log;
    EXPECT_EQ(vault.pin(key_of(1)), nullptr);
    EXPECT_EQ(vault.stats().failures, 1);
    EXPECT_EQ(log.lines(), 1) << log.text();
    EXPECT_FALSE(fs::exists(path));
    EXPECT_EQ(vault.stats().memory_bytes, 0u);
    EXPECT_EQ(vault.stats().disk_bytes, image_bytes_);
    expect_state(vault.pin(key_of(2)), 2);
    EXPECT_TRUE(vault.put(key_of(1), version(1), image(1)));
    EXPECT_EQ(log.lines(), 1) << log.text();
    vault.drop(key_of(1));
    vault.drop(key_of(2));
  }
  static void flip(const std::string& path, uint64_t offset) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(offset));
    const char c = static_cast<char>(file.get() ^ 4);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(c);
  }
};

TEST_F(StateVaultFault, FlippedBitOfASection) {
  const uint64_t last = image(1).manifest().sections().back().offset + 4999;
  for (const uint64_t at : {uint64_t{4096}, last})
    expect_loss([at](const std::string& path) { flip(path, at); });
}
TEST_F(StateVaultFault, FlippedBitOfTheManifest) {
  for (const uint64_t at : {0, 20, 60, 200})
    expect_loss([at](const std::string& path) { flip(path, at); });
}
TEST_F(StateVaultFault, CutFile) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{50}, uint64_t{300}, image_bytes_ - 4096})
    expect_loss([bytes](const std::string& path) { fs::resize_file(path, bytes); });
}
TEST_F(StateVaultFault, VanishedFile) {
  expect_loss([](const std::string& path) { fs::remove(path); });
}

// The system refuses files above a size, as a full disk would.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SmallFiles() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, SIG_DFL);
  }

 private:
  rlimit before_{};
};

TEST_F(StateVaultFault, FullDiskCostsTheEvictedEntryOnly) {
  StateVault vault(options(1, 8));
  const LogCapture log;
  {
    const SmallFiles limit(image_bytes_ / 2);
    vault.put(key_of(1), version(1), image(1));
    EXPECT_TRUE(vault.put(key_of(2), version(1), image(2)));
  }
  EXPECT_EQ(vault.pin(key_of(1)), nullptr);
  expect_state(vault.pin(key_of(2)), 2);
  EXPECT_EQ(log.lines(), 1) << log.text();
  EXPECT_EQ(vault.stats().failures, 1);
  EXPECT_EQ(vault.stats().disk_bytes, 0u);
  EXPECT_TRUE(files().empty());
}

TEST_F(StateVaultFault, DirectoryThatIsAFileLeavesTheMemoryTier) {
  auto options = this->options(1, 8);
  options.directory = directory_.write("file", "x");
  const LogCapture log;
  StateVault vault(options);
  EXPECT_EQ(log.lines(), 1) << log.text();
  EXPECT_TRUE(vault.put(key_of(1), version(1), image(1)));
  EXPECT_TRUE(vault.put(key_of(2), version(1), image(2)));
  expect_state(vault.pin(key_of(2)), 2);
}

TEST_F(StateVaultTest, WrongArgumentsEndInASentence) {
  StateVault vault(options(1, 1));
  EXPECT_THROW(vault.put("session-1", version(1), image(1)), Error);
  EXPECT_THROW(vault.put(key_of(1), {"../../x", 1}, image(1)), Error);
  StateShape other = shape_;
  other.fingerprint.fill(std::byte{1});
  EXPECT_THROW(
      vault.put(key_of(1), version(1), StateImage::build(random_state(other, 5, 1), other)), Error);
  const StateImage whole = image(1);
  EXPECT_THROW(
      vault.put(key_of(1), version(1),
                StateImage::of_manifest(whole.bytes().first(whole.manifest().manifest_bytes()))),
      Error);
}

// Threads put, read, drop, relabel and flush a handful of conversations in tiers too small for
// them. Whatever the order: memory stays within its budget and what is read is the state of its
// version; in the end nothing is pinned and every byte is accounted for by an entry.
TEST_F(StateVaultTest, BudgetsAndPinsHoldUnderThreads) {
  constexpr int kKeys = 6;
  constexpr int kVersions = 3;
  constexpr int kThreads = 4;
  constexpr int kSteps = 150;
  std::vector<SavedState> states;
  for (int i = 0; i < kKeys * kVersions; ++i)
    states.push_back(random_state(shape_, kTokens, static_cast<uint64_t>(i)));
  StateVault vault(options(3, 4));
  std::atomic<int> wrong{0}, over{0}, reads{0};
  const auto work = [&](unsigned seed) {
    std::minstd_rand random(seed);
    std::vector<PinnedImage> held;
    for (int step = 0; step < kSteps; ++step) {
      const int key = static_cast<int>(random() % kKeys);
      const int number = static_cast<int>(random() % kVersions);
      switch (random() % 8) {
        case 0:
        case 1:
        case 2: {
          const auto& state = states[static_cast<size_t>(key * kVersions + number)];
          vault.put(key_of(key), version(static_cast<uint64_t>(number)),
                    StateImage::build(state, shape_));
          break;
        }
        case 3:
        case 4:
        case 5: {
          const PinnedImage image = vault.pin(key_of(key));
          if (image == nullptr) break;
          ++reads;
          const SavedState state = image->state(kTokens);
          bool known = false;
          for (int v = 0; v < kVersions; ++v) {
            const SavedState& s = states[static_cast<size_t>(key * kVersions + v)];
            known = known || (s.tokens == state.tokens && s.recent == state.recent &&
                              s.sources[1].index == state.sources[1].index);
          }
          if (!known) ++wrong;
          if (held.size() < 1) held.push_back(image);
          break;
        }
        case 6:
          if (random() % 4 == 0) vault.flush();
          vault.drop(key_of(key));
          break;
        default:
          held.clear();
          vault.relabel(key_of(key), version(static_cast<uint64_t>(number)));
      }
      const VaultStats stats = vault.stats();
      if (stats.memory_bytes > 3 * image_bytes_ || stats.disk_bytes > 4 * image_bytes_) ++over;
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) threads.emplace_back(work, i + 1);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(over, 0);
  EXPECT_GT(reads, 0);

  const VaultStats stats = vault.stats();
  EXPECT_EQ(stats.pins, 0);
  EXPECT_EQ(stats.failures, 0);
  uint64_t in_memory = 0, on_disk = 0;
  for (const VaultEntry& entry : vault.entries()) {
    in_memory += entry.in_memory ? entry.bytes : 0;
    on_disk += entry.on_disk ? entry.bytes : 0;
  }
  EXPECT_EQ(stats.memory_bytes, in_memory);
  EXPECT_EQ(stats.disk_bytes, on_disk);
  EXPECT_EQ(files().size() * image_bytes_, on_disk);
}

}  // namespace
}  // namespace peregrine::test
