// Replays the committed seeds of one fuzz target as tests, one a file, in any build. The target
// returns or crashes; a crash under a sanitizer is the failure. A target without seeds fails,
// because its program would otherwise check nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

namespace fs = std::filesystem;

class SeedTest : public testing::Test {
 public:
  explicit SeedTest(fs::path seed) : seed_(std::move(seed)) {}

  void TestBody() override {
    std::ifstream file(seed_, std::ios::binary);
    ASSERT_TRUE(file) << "cannot open " << seed_;
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()),
              0);
  }

 private:
  fs::path seed_;
};

class HasSeeds : public testing::Test {
 public:
  explicit HasSeeds(size_t count) : count_(count) {}
  void TestBody() override { EXPECT_GT(count_, 0u) << "no seeds in " << PEREGRINE_CORPUS; }

 private:
  size_t count_;
};

// GoogleTest's filters reserve some characters that file names may hold.
std::string test_name(const fs::path& seed) {
  std::string name = seed.filename().string();
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  std::vector<fs::path> seeds;
  std::error_code no_folder;  // leaves the list empty, which HasSeeds reports
  for (const fs::directory_entry& entry : fs::directory_iterator(PEREGRINE_CORPUS, no_folder)) {
    seeds.push_back(entry.path());
  }
  std::sort(seeds.begin(), seeds.end());

  testing::RegisterTest("Corpus", "HasSeeds", nullptr, nullptr, __FILE__, __LINE__,
                        [count = seeds.size()]() -> testing::Test* { return new HasSeeds(count); });
  for (const fs::path& seed : seeds) {
    testing::RegisterTest("Seed", test_name(seed).c_str(), nullptr, nullptr, __FILE__, __LINE__,
                          [seed]() -> testing::Test* { return new SeedTest(seed); });
  }
  return RUN_ALL_TESTS();
}
