// The Engram's row numbers and its module, against tests/data/engram and the worked examples of
// spec/engram.md.
#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/engram_primes.h"
#include "model/engram_hash.h"
#include "peregrine/error.h"
#include "support/fixtures.h"
#include "support/model_fixture.h"

namespace peregrine::test {
namespace {

class EngramHash : public ::testing::Test {
 protected:
  EngramHash()
      : expected_(data_path("engram/expected.safetensors")),
        config_(ModelConfig::load(data_path("engram/config.json"))),
        hasher_(config_, expected_.ints("map.token_map")) {}

  // [count][table][column] rows of positions begin .. begin + count - 1.
  std::vector<int32_t> rows(const std::vector<int32_t>& tokens, const std::vector<uint8_t>& image,
                            int64_t begin, int64_t count) const {
    std::vector<int32_t> all;
    std::vector<int64_t> row(static_cast<size_t>(hasher_.columns()));
    for (int64_t pos = begin; pos < begin + count; ++pos)
      for (int table = 0; table < hasher_.tables(); ++table) {
        hasher_.rows(table, tokens, image, pos, row.data());
        all.insert(all.end(), row.begin(), row.end());
      }
    return all;
  }

  Fixture expected_;
  ModelConfig config_;
  EngramHasher hasher_;
};

TEST_F(EngramHash, RowsOfPrefillAndDecode) {
  for (const std::string name : {"long", "short"}) {
    const auto tokens = expected_.ints(name + ".tokens");
    const int64_t prompt = expected_.view(name + ".prefill.hash").shape[0];
    const auto length = static_cast<int64_t>(tokens.size());
    EXPECT_EQ(rows(tokens, {}, 0, prompt), expected_.ints(name + ".prefill.hash"));
    EXPECT_EQ(rows(tokens, {}, prompt, length - prompt), expected_.ints(name + ".decode.hash"));
  }
}

TEST_F(EngramHash, ImagePositionsTakeNoPart) {
  auto tokens = expected_.ints("masked.tokens");
  std::vector<uint8_t> image;
  for (const uint8_t text : expected_.bytes("masked.mask")) image.push_back(text ? 0 : 1);
  ASSERT_GT(std::count(image.begin(), image.end(), 1), 0);
  const auto prompt = static_cast<int64_t>(tokens.size());
  EXPECT_EQ(rows(tokens, image, 0, prompt), expected_.ints("masked.hash"));
  for (const int32_t token : expected_.ints("masked.decode_tokens")) {
    tokens.push_back(token);
    image.push_back(0);
  }
  EXPECT_EQ(rows(tokens, image, prompt, static_cast<int64_t>(tokens.size()) - prompt),
            expected_.ints("masked.decode_hash"));
}

TEST_F(EngramHash, PrimesOffsetsMultipliers) {
  std::vector<int64_t> primes, offsets, multipliers;
  for (int table = 0; table < hasher_.tables(); ++table) {
    primes.insert(primes.end(), hasher_.primes(table).begin(), hasher_.primes(table).end());
    offsets.insert(offsets.end(), hasher_.offsets(table).begin(), hasher_.offsets(table).end());
    const auto m =
        engram_multipliers(config_.engram_layer_ids[static_cast<size_t>(table)],
                           config_.engram_compressed_vocab_size, config_.engram_max_ngram);
    multipliers.insert(multipliers.end(), m.begin(), m.end());
  }
  EXPECT_EQ(primes, expected_.longs("map.primes"));
  EXPECT_EQ(offsets, expected_.longs("map.offsets"));
  EXPECT_EQ(multipliers, expected_.longs("map.multipliers"));
}

TEST_F(EngramHash, ReleasedPrimesAndMultipliers) {
  std::vector<int64_t> flat, multipliers;
  for (const auto& table : engram_primes(2, 4, 8, 16000000)) {
    int64_t sum = 0;
    for (const auto& order : table)
      for (const int64_t prime : order) {
        flat.push_back(prime);
        sum += prime;
      }
    EXPECT_EQ(sum, flat.size() == 24 ? 384006168 : 384016682);
  }
  EXPECT_EQ(flat, expected_.longs("released.primes"));
  for (const int layer : {1, 14})
    for (const int64_t m : engram_multipliers(layer, 99092, 4)) multipliers.push_back(m);
  EXPECT_EQ(multipliers, expected_.longs("released.multipliers"));
}

TEST_F(EngramHash, MultipliersOfOtherLayers) {
  std::vector<int64_t> multipliers;
  for (const int64_t layer : expected_.longs("rng.layer_ids"))
    for (const int64_t m : engram_multipliers(static_cast<int>(layer), 1000, 4))
      multipliers.push_back(m);
  EXPECT_EQ(multipliers, expected_.longs("rng.multipliers_vocab1000"));
}

TEST(NumpyGenerator, FirstOutputs) {
  NumpyGenerator generator(10007);
  for (const uint64_t want :
       {0xD2C3F84026661E33u, 0x0D4FB6969EB57435u, 0x62E6E1C58C3BD72Bu, 0xCB7DD1A94CA96343u})
    EXPECT_EQ(generator.next(), want);
}

TEST_F(EngramHash, RefusesAnotherTokenMap) {
  auto map = expected_.ints("map.token_map");
  for (auto& id : map) id = std::min(id, config_.engram_compressed_vocab_size - 2);
  EXPECT_THROW(EngramHasher(config_, map), Error);
  map.pop_back();
  EXPECT_THROW(EngramHasher(config_, map), Error);
}

// spec/engram.md section 4. The map hands ids through, so raw ids are compressed ids.
class ReleasedEngramHash : public ::testing::Test {
 protected:
  ReleasedEngramHash() {
    const auto config = ModelConfig::load(data_path("released/config.json"));
    std::vector<int32_t> map(static_cast<size_t>(config.vocab_size));
    for (size_t id = 0; id < map.size(); ++id)
      map[id] = std::min(static_cast<int32_t>(id), config.engram_compressed_vocab_size - 1);
    hasher_.emplace(config, map);
  }
  std::vector<int64_t> rows(int table, int64_t pos, const std::vector<uint8_t>& image = {}) const {
    const std::vector<int32_t> tokens{0, 1234, 56789, 99091, 42};
    std::vector<int64_t> row(static_cast<size_t>(hasher_->columns()));
    hasher_->rows(table, tokens, image, pos, row.data());
    return row;
  }
  std::optional<EngramHasher> hasher_;
};

TEST_F(ReleasedEngramHash, WorkedExamples) {
  using Rows = std::vector<int64_t>;
  EXPECT_EQ(rows(0, 0), (Rows{5702652,   24393184,  39183301,  61503783,  78984481,  90144770,
                              103724983, 121476532, 131476717, 152385926, 164143652, 191599181,
                              198145581, 217419202, 238329687, 247482304, 257520185, 283540304,
                              288689443, 315264704, 322314652, 348890037, 367865216, 380066193}));
  EXPECT_EQ(rows(0, 3), (Rows{11404318,  27126760,  41634012,  54340549,  78230449,  93881805,
                              103148991, 124071803, 133257355, 152050246, 174856487, 176054632,
                              201218470, 210710084, 225084630, 240763833, 257564151, 276070245,
                              296150887, 309418656, 330126120, 346979941, 365015998, 371481398}));
  EXPECT_EQ(rows(0, 4), (Rows{13131409,  22107638,  46286683,  48259159,  69021570,  87090089,
                              104214597, 115341818, 140469435, 152224130, 175060449, 181511858,
                              194942891, 212939526, 236035562, 250290388, 264434739, 275900653,
                              295666688, 314393442, 332523835, 336187450, 356449016, 378465472}));
  EXPECT_EQ(rows(1, 0), (Rows{14361964,  29977809,  32716444,  61209771,  67456205,  84275051,
                              108494439, 120604547, 132225184, 150270452, 174805952, 178895254,
                              193207923, 211610196, 226280582, 252505246, 261362261, 279862797,
                              301364059, 312864848, 328367036, 349372619, 363873742, 372375971}));
  EXPECT_EQ(rows(1, 4), (Rows{3275938,   25911066,  45539186,  51149320,  70912410,  90856326,
                              98488218,  121693602, 128619689, 154374256, 160013264, 185266408,
                              200351791, 209924081, 237511856, 241346402, 270694669, 280476897,
                              298401722, 304751667, 333997188, 343670755, 363149684, 383779454}));
}

TEST_F(ReleasedEngramHash, WorkedExampleWithAnImage) {
  EXPECT_EQ(
      rows(0, 4, {0, 0, 1, 0, 0}),
      (std::vector<int64_t>{13131409,  22107638,  46286683,  48259159,  69021570,  87090089,
                            104214597, 115341818, 135168683, 154635978, 171572005, 185028301,
                            195693925, 217838742, 228070194, 252870089, 263344940, 282425859,
                            298237857, 306346728, 327828181, 336162466, 360086191, 369255912}));
}

class EngramModule : public ::testing::TestWithParam<std::string> {};

// The module of layer 1 on recorded streams, with and without image rows.
TEST_P(EngramModule, LookUpAndMix) {
  const Fixture expected(data_path("engram/expected.safetensors"));
  ModelUnderTest::Options options;
  options.token_map = expected.ints("map.token_map");
  ModelUnderTest model(data_path("engram"), GetParam(), options);
  Backend& b = *model.backend;
  const EngramWeights& w = *model.weights->layers[1].engram;
  const int64_t rows = expected.view("module.x").shape[0];
  const int columns = model.hasher->columns();
  std::vector<void*> owned;
  const auto make = [&](int64_t cols) {
    Tensor t{nullptr, rows, cols, Elem::kF32};
    t.data = owned.emplace_back(b.allocate(t.bytes()));
    return t;
  };
  const auto put = [&](const void* data, size_t bytes) {
    void* at = owned.emplace_back(b.allocate(bytes));
    b.copy_in(at, data, bytes);
    return at;
  };
  std::vector<int64_t> ids;  // of the first table
  const auto hash = expected.ints("masked.hash");
  for (int64_t r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c) ids.push_back(hash[static_cast<size_t>(r * 2 * columns + c)]);
  const auto* row_ids = static_cast<int64_t*>(put(ids.data(), ids.size() * sizeof(int64_t)));

  const Tensor looked_up = make(columns * w.table.width), kv = make(w.wkv.out);
  b.engram_gather(w.table, row_ids, columns, looked_up);
  EXPECT_EQ(model.copy(looked_up), expected.floats("module.rows"));
  b.linear(looked_up, w.wkv, LinearKind::kQuantised, kv);

  std::vector<uint8_t> image(static_cast<size_t>(rows), 0);
  const auto x = expected.floats("module.x");
  for (const std::string output : {"module.y", "module.y_masked"}) {
    const Tensor stream{put(x.data(), x.size() * sizeof(float)), rows,
                        static_cast<int64_t>(x.size()) / rows, Elem::kF32};
    const auto* flags = static_cast<uint8_t*>(put(image.data(), image.size()));
    b.engram_mix({.x = stream, .kv = kv, .gain = w.gain, .is_image = flags});
    EXPECT_LT(max_difference(model.copy(stream), expected.floats(output)), 2e-5) << output;
    const auto text = expected.bytes("masked.mask");
    for (size_t r = 0; r < image.size(); ++r) image[r] = text[r] ? 0 : 1;
  }
  for (void* data : owned) b.release(data);
}

INSTANTIATE_TEST_SUITE_P(Backends, EngramModule, ::testing::ValuesIn(backends()));

}  // namespace
}  // namespace peregrine::test
