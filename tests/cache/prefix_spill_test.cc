// Saved states on disk: they come back byte for byte, or not at all; no fault reaches a request.
#include <gtest/gtest.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "cache/cache_rig.h"
#include "cache/prefix_cache.h"
#include "checkpoint/temporary_directory.h"

namespace peregrine::test {
namespace {

namespace fs = std::filesystem;

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

class PrefixSpillTest : public testing::Test {
 protected:
  PrefixCacheOptions options(PrefixCacheMode mode = PrefixCacheMode::kExact) const {
    return {.mode = mode,
            .recent_budget_bytes = uint64_t{1} << 20,
            .spill_dir = directory_.path(),
            .spill_budget_bytes = uint64_t{1} << 20,
            .fingerprint = 0x1234};
  }
  std::vector<std::string> files() const {
    std::vector<std::string> paths;
    for (const auto& entry : fs::directory_iterator(directory_.path()))
      paths.push_back(entry.path().string());
    std::sort(paths.begin(), paths.end());
    return paths;
  }
  // One file: the state of `tokens`.
  std::string leave_file(const Tokens& tokens, const PrefixCacheOptions& options) {
    {
      PrefixCache cache(rig_.state(), options);
      rig_.store(cache, tokens);
    }
    const auto paths = files();
    EXPECT_EQ(paths.size(), 1u);
    return paths.at(0);
  }
  void expect_state(int slot, const Tokens& tokens, int64_t length) {
    rig_.apply();
    EXPECT_EQ(rig_.recent(slot, length), rig_.expected_recent(tokens, length));
    for (int source = 0; source < 2; ++source)
      EXPECT_EQ(rig_.rows(slot, source, length), rig_.expected_rows(tokens, source, length));
  }
  int64_t exact_length(PrefixCache& cache, const Tokens& tokens) {
    return cache.lookup(tokens, std::ssize(tokens)).exact_length;
  }

  TemporaryDirectory directory_;
  CacheRig rig_;
  const Tokens tokens_ = sequence(23);
};

TEST_F(PrefixSpillTest, EvictedPointComesBackFromItsFile) {
  PrefixCache cache(rig_.state(), options());
  rig_.store(cache, tokens_);
  EXPECT_TRUE(files().empty());
  EXPECT_EQ(cache.evict(1), rig_.state().pages_for(23));
  EXPECT_EQ(rig_.state().pool().used_pages(), 0);
  EXPECT_EQ(cache.recent_bytes(), 0u);
  EXPECT_EQ(cache.spill_stats().points, 1);
  ASSERT_EQ(files().size(), 1u);
  EXPECT_EQ(cache.spill_stats().bytes, fs::file_size(files()[0]));

  EXPECT_EQ(exact_length(cache, joined(tokens_, {1})), 23);
  const int slot = rig_.state().acquire();
  ASSERT_TRUE(cache.attach(tokens_, 23, true, slot));
  expect_state(slot, tokens_, 23);
  // It is in memory again, and shared.
  EXPECT_EQ(cache.pages(), rig_.state().pages_for(23));
  EXPECT_EQ(cache.recent_bytes(), rig_.state().recent_bytes());
  const int other = rig_.state().acquire();
  ASSERT_TRUE(cache.attach(tokens_, 23, true, other));
  EXPECT_EQ(rig_.state().pool().used_pages(), rig_.state().pages_for(23));
  expect_state(other, tokens_, 23);
  rig_.expect_balance(&cache, std::vector{slot, other});
}

TEST_F(PrefixSpillTest, FileAlsoServesAReplayOfAnyLength) {
  const auto replay = options(PrefixCacheMode::kReplay);
  leave_file(tokens_, replay);
  for (const int64_t length : {1, 2, 13, 22}) {
    PrefixCache cache(rig_.state(), replay);
    Tokens asked(tokens_.begin(), tokens_.begin() + length);
    EXPECT_EQ(cache.lookup(joined(asked, {-1, -1}), length + 2).replay_length, length);
    const int slot = rig_.state().acquire();
    ASSERT_TRUE(cache.attach(asked, length, false, slot));
    rig_.apply();
    for (int source = 0; source < 2; ++source)
      EXPECT_EQ(rig_.rows(slot, source, length), rig_.expected_rows(tokens_, source, length));
    rig_.state().release(slot);
  }
}

TEST_F(PrefixSpillTest, RecentPartOverBudgetIsReadFromItsFile) {
  auto small = options();
  small.recent_budget_bytes = 0;
  PrefixCache cache(rig_.state(), small);
  rig_.store(cache, tokens_);
  EXPECT_EQ(cache.recent_bytes(), 0u);
  EXPECT_EQ(cache.pages(), rig_.state().pages_for(23));  // its rows stay in the pool
  EXPECT_EQ(exact_length(cache, tokens_), 23);
  const int slot = rig_.state().acquire();
  ASSERT_TRUE(cache.attach(tokens_, 23, true, slot));
  EXPECT_EQ(rig_.state().pool().used_pages(), rig_.state().pages_for(23));
  EXPECT_EQ(cache.recent_bytes(), 0u);
  expect_state(slot, tokens_, 23);
}

TEST_F(PrefixSpillTest, RestartFindsItsPointsAgain) {
  const Tokens longer = joined(tokens_, sequence(9, 1));
  {
    PrefixCache cache(rig_.state(), options());
    rig_.store(cache, tokens_);
    rig_.store(cache, longer);
  }
  EXPECT_EQ(rig_.state().pool().used_pages(), 0);
  PrefixCache cache(rig_.state(), options());
  EXPECT_EQ(cache.entries(), 2);
  EXPECT_EQ(cache.pages(), 0);
  for (const auto& [tokens, length] : {std::pair{tokens_, 23}, std::pair{longer, 32}}) {
    EXPECT_EQ(exact_length(cache, tokens), length);
    const int slot = rig_.state().acquire();
    ASSERT_TRUE(cache.attach(tokens, length, true, slot));
    expect_state(slot, tokens, length);
    rig_.state().release(slot);
  }
  EXPECT_EQ(cache.spill_stats().failures, 0);
}

TEST_F(PrefixSpillTest, OtherModelsFilesAreLeftAlone) {
  leave_file(tokens_, options());
  auto other = options();
  other.fingerprint = 0x9999;
  {
    PrefixCache cache(rig_.state(), other);
    EXPECT_EQ(cache.entries(), 0);
    EXPECT_EQ(cache.spill_stats().failures, 0);
  }
  EXPECT_EQ(files().size(), 1u);
  // Under a name that claims to be this model's it is found out.
  const std::string path = files()[0];
  std::string name = path;
  name.replace(name.find("0000000000001234"), 16, "0000000000009999");
  fs::rename(path, name);
  PrefixCache cache(rig_.state(), other);
  EXPECT_EQ(cache.entries(), 0);
  EXPECT_EQ(cache.spill_stats().failures, 1);
  EXPECT_TRUE(files().empty());
}

TEST_F(PrefixSpillTest, ExactModeTakesNoReplayedRows) {
  {
    PrefixCache cache(rig_.state(), options(PrefixCacheMode::kReplay));
    rig_.store(cache, tokens_, false, 1);
  }
  EXPECT_EQ(files().size(), 1u);
  {
    PrefixCache cache(rig_.state(), options(PrefixCacheMode::kReplay));
    EXPECT_FALSE(cache.lookup(tokens_, 23).rows_exact);
  }
  PrefixCache cache(rig_.state(), options());
  EXPECT_EQ(cache.entries(), 0);
}

TEST_F(PrefixSpillTest, ByteBudgetRemovesLeastRecentlyUsedFiles) {
  auto two = options();
  two.recent_budget_bytes = 0;
  two.spill_budget_bytes = 2 * fs::file_size(leave_file(sequence(23, 1), options()));
  PrefixCache cache(rig_.state(), two);
  rig_.store(cache, sequence(23, 2));
  EXPECT_EQ(files().size(), 2u);
  EXPECT_EQ(exact_length(cache, sequence(23, 1)), 23);
  rig_.store(cache, sequence(23, 3));
  EXPECT_EQ(files().size(), 2u);
  EXPECT_EQ(cache.entries(), 2);
  EXPECT_EQ(exact_length(cache, sequence(23, 1)), 23);
  EXPECT_EQ(exact_length(cache, sequence(23, 2)), 0);
  EXPECT_EQ(exact_length(cache, sequence(23, 3)), 23);
  cache.clear();
  EXPECT_TRUE(files().empty());
  EXPECT_EQ(cache.spill_stats().bytes, 0u);
}

TEST_F(PrefixSpillTest, PointThatCanNeverFitCostsNoOtherItsPlace) {
  auto one = options();
  one.recent_budget_bytes = 0;
  one.spill_budget_bytes = fs::file_size(leave_file(sequence(23, 1), options()));
  PrefixCache cache(rig_.state(), one);
  rig_.store(cache, sequence(90, 4));
  EXPECT_EQ(cache.entries(), 1);
  EXPECT_EQ(exact_length(cache, sequence(23, 1)), 23);
  EXPECT_EQ(cache.spill_stats().failures, 0);
}

TEST_F(PrefixSpillTest, BudgetHoldsForFilesOfEarlierRuns) {
  {
    PrefixCache cache(rig_.state(), options());
    for (const uint64_t seed : {1, 2, 3}) rig_.store(cache, sequence(23, seed));
  }
  auto one = options();
  one.spill_budget_bytes = fs::file_size(files()[0]);
  const PrefixCache cache(rig_.state(), one);
  EXPECT_EQ(files().size(), 1u);
  EXPECT_EQ(cache.entries(), 1);
}

TEST_F(PrefixSpillTest, RestoringMakesRoomInTheFullPool) {
  CacheRig rig(2 * static_cast<int>(rig_.state().pages_for(23)));
  PrefixCache cache(rig.state(), options());
  rig.store(cache, sequence(23, 1));
  cache.evict(1);
  rig.store(cache, sequence(23, 2));
  rig.store(cache, sequence(23, 3));
  EXPECT_EQ(rig.state().pool().free_pages(), 0);
  const int slot = rig.state().acquire();
  ASSERT_TRUE(cache.attach(sequence(23, 1), 23, true, slot));
  rig.apply();
  EXPECT_EQ(rig.rows(slot, 1, 23), rig.expected_rows(sequence(23, 1), 1, 23));
  EXPECT_EQ(exact_length(cache, sequence(23, 2)), 23);  // on file now
  rig.expect_balance(&cache, std::vector{slot});

  // No room at all: the slot stays empty, the file stays.
  cache.evict(9);
  const int running = rig.fill(sequence(23, 4));
  const int refused = rig.state().acquire();
  EXPECT_FALSE(cache.attach(sequence(23, 2), 23, true, refused));
  EXPECT_TRUE(rig.state().pages(refused, 1).empty());
  EXPECT_EQ(exact_length(cache, sequence(23, 2)), 23);
  rig.expect_balance(&cache, std::vector{slot, running});
}

// A page may be the source of a copy that the device has not made when it is evicted and filled.
TEST_F(PrefixSpillTest, FilledPagesWaitForCopiesPlannedBefore) {
  const Tokens brief = sequence(2, 1);
  CacheRig rig(static_cast<int>(rig_.state().pages_for(23)) + 2);
  PrefixCache cache(rig.state(), options());
  rig.store(cache, brief);
  cache.evict(1);
  rig.store(cache, tokens_);
  const int a = rig.state().acquire();
  ASSERT_TRUE(cache.attach(tokens_, 23, true, a));
  const auto last = rig.state().pages(a, 1).back();
  ASSERT_TRUE(rig.state().reserve(a, 23, 23));  // copies the last page of each source
  ASSERT_EQ(rig.state().pool().free_pages(), 0);
  const int b = rig.state().acquire();
  ASSERT_TRUE(cache.attach(brief, 2, true, b));  // evicts these pages and takes them
  ASSERT_TRUE(rig.state().pages(b, 0)[0] == last || rig.state().pages(b, 1)[0] == last);
  rig.apply();
  for (int source = 0; source < 2; ++source) {
    EXPECT_EQ(rig.rows(a, source, 23), rig.expected_rows(tokens_, source, 23));
    EXPECT_EQ(rig.rows(b, source, 2), rig.expected_rows(brief, source, 2));
  }
}

// Exact rows take the place of replayed ones on disk too.
TEST_F(PrefixSpillTest, ExactRowsReplaceTheFileOfReplayedOnes) {
  PrefixCache cache(rig_.state(), options(PrefixCacheMode::kReplay));
  rig_.store(cache, tokens_, false, 1);
  cache.evict(1);
  rig_.store(cache, tokens_, true);
  cache.evict(1);
  EXPECT_EQ(files().size(), 1u);
  EXPECT_TRUE(cache.lookup(tokens_, 23).rows_exact);
  const int slot = rig_.state().acquire();
  ASSERT_TRUE(cache.attach(tokens_, 23, true, slot));
  expect_state(slot, tokens_, 23);
}

// Pages that the device has not filled yet must not be written to a file again.
TEST_F(PrefixSpillTest, PagesOnTheirWayBackAreNotSpilled) {
  auto one = options();
  one.spill_budget_bytes = fs::file_size(leave_file(tokens_, options()));
  PrefixCache cache(rig_.state(), one);
  rig_.store(cache, sequence(23, 1));
  const int slot = rig_.state().acquire();
  ASSERT_TRUE(cache.attach(tokens_, 23, true, slot));
  rig_.state().release(slot);
  cache.evict(1000);  // the other entry takes the place on disk
  EXPECT_EQ(exact_length(cache, sequence(23, 1)), 23);
  EXPECT_EQ(exact_length(cache, tokens_), 0);
}

// -- faults --------------------------------------------------------------------------------------

// Whatever happened to the file, a lookup and an attach end without a state and without an error.
class PrefixSpillFaults : public PrefixSpillTest {
 protected:
  // Hundreds of warnings are expected here.
  PrefixSpillFaults() { spdlog::set_level(spdlog::level::off); }
  ~PrefixSpillFaults() override { spdlog::set_level(spdlog::level::info); }

  void expect_dropped(const std::string& what) {
    SCOPED_TRACE(what);
    PrefixCache cache(rig_.state(), options());
    const int slot = rig_.state().acquire();
    if (exact_length(cache, tokens_) > 0) {
      EXPECT_FALSE(cache.attach(tokens_, 23, true, slot));
    }
    EXPECT_TRUE(rig_.state().pages(slot, 0).empty() && rig_.state().pages(slot, 1).empty());
    EXPECT_EQ(cache.spill_stats().failures, 1);
    EXPECT_EQ(cache.spill_stats().points, 0);
    EXPECT_EQ(cache.entries(), 0);
    EXPECT_TRUE(files().empty());
    EXPECT_EQ(exact_length(cache, tokens_), 0);
    rig_.state().release(slot);
    EXPECT_EQ(rig_.state().pool().used_pages(), 0);
  }
};

TEST_F(PrefixSpillFaults, AnyFlippedBitIsFound) {
  const std::string path = leave_file(tokens_, options());
  const std::string good = read_file(path);
  // Every byte of the head and of the first checksum, then samples that cover every block.
  for (size_t at = 0; at < good.size(); at += at < 200 ? 1 : 37) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
    write_file(path, bad);
    expect_dropped("byte " + std::to_string(at));
  }
}

TEST_F(PrefixSpillFaults, AnyOtherLengthIsFound) {
  const std::string path = leave_file(tokens_, options());
  const std::string good = read_file(path);
  for (size_t size = 0; size < good.size(); size += size < 200 ? 1 : 211) {
    write_file(path, good.substr(0, size));
    expect_dropped(std::to_string(size) + " bytes");
  }
  write_file(path, good + "x");
  expect_dropped("one byte more");
}

TEST_F(PrefixSpillFaults, SwappedPagesAreFound) {
  const std::string path = leave_file(tokens_, options());
  const std::string good = read_file(path);
  const size_t block = rig_.state().page_bytes() + 8;
  std::string bad = good.substr(0, good.size() - 2 * block);
  bad += good.substr(good.size() - block);
  bad += good.substr(good.size() - 2 * block, block);
  ASSERT_NE(bad, good);
  write_file(path, bad);
  expect_dropped("last two pages swapped");
}

TEST_F(PrefixSpillFaults, FileThatVanishedOrIsAnothersIsDropped) {
  const std::string path = leave_file(tokens_, options());
  const std::string good = read_file(path);
  for (const bool vanish : {true, false}) {
    write_file(path, good);
    PrefixCache cache(rig_.state(), options());
    ASSERT_EQ(exact_length(cache, tokens_), 23);
    fs::remove(path);
    if (!vanish) {
      const Tokens other = sequence(23, 8);
      TemporaryDirectory elsewhere;
      auto there = options();
      there.spill_dir = elsewhere.path();
      {
        PrefixCache second(rig_.state(), there);
        rig_.store(second, other);
      }
      fs::copy(fs::directory_iterator(elsewhere.path())->path(), path);
    }
    const int slot = rig_.state().acquire();
    EXPECT_FALSE(cache.attach(tokens_, 23, true, slot));
    EXPECT_EQ(cache.spill_stats().failures, 1);
    EXPECT_EQ(cache.entries(), 0);
    rig_.state().release(slot);
  }
}

TEST_F(PrefixSpillFaults, LeftoversOfAnInterruptedWriteAreRemoved) {
  const std::string path = leave_file(tokens_, options());
  write_file(path + ".part", "half");
  write_file(directory_.file("notes.txt"), "not ours");
  const PrefixCache cache(rig_.state(), options());
  EXPECT_EQ(cache.entries(), 1);
  EXPECT_EQ(files(), (std::vector{path, directory_.file("notes.txt")}));
}

// A limit on file sizes stands for a full disk: the write ends early with an error.
TEST_F(PrefixSpillFaults, FullDiskCostsThePointOnly) {
  struct rlimit old {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  PrefixCache cache(rig_.state(), options());
  rig_.store(cache, tokens_);
  rlimit tiny = old;
  tiny.rlim_cur = 1000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tiny), 0);
  const int64_t freed = cache.evict(1);
  setrlimit(RLIMIT_FSIZE, &old);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(freed, rig_.state().pages_for(23));
  EXPECT_EQ(cache.spill_stats().failures, 1);
  EXPECT_EQ(cache.entries(), 0);
  EXPECT_TRUE(files().empty());
  rig_.store(cache, tokens_);  // and works again
  cache.evict(1);
  EXPECT_EQ(cache.spill_stats().points, 1);
}

TEST_F(PrefixSpillFaults, DirectoryThatGoesAwayCostsThePointOnly) {
  PrefixCache cache(rig_.state(), options());
  rig_.store(cache, tokens_);
  fs::remove_all(directory_.path());
  cache.evict(1);
  EXPECT_EQ(cache.spill_stats().failures, 1);
  EXPECT_EQ(cache.entries(), 0);
}

// Nobody can make a file there, root included.
TEST_F(PrefixSpillFaults, UnwritableDirectoryCostsThePointOnly) {
  auto bad = options();
  bad.spill_dir = "/proc";
  PrefixCache cache(rig_.state(), bad);
  EXPECT_EQ(cache.spill_stats().failures, 0);
  rig_.store(cache, tokens_);
  cache.evict(1);
  EXPECT_EQ(cache.spill_stats().failures, 1);
  EXPECT_EQ(cache.entries(), 0);
}

TEST_F(PrefixSpillFaults, DirectoryThatCannotBeMadeSwitchesSpillingOff) {
  auto bad = options();
  bad.spill_dir = directory_.write("file", "in the way") + "/below";
  PrefixCache cache(rig_.state(), bad);
  EXPECT_EQ(cache.spill_stats().failures, 1);
  rig_.store(cache, tokens_);
  EXPECT_EQ(exact_length(cache, tokens_), 23);
  EXPECT_GT(cache.evict(1), 0);
  EXPECT_EQ(cache.entries(), 0);
  EXPECT_EQ(cache.spill_stats().failures, 1);
}

}  // namespace
}  // namespace peregrine::test
