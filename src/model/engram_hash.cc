#include "model/engram_hash.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>

#include "base/fail.h"
#include "checkpoint/engram_primes.h"

namespace peregrine {
namespace {

constexpr int kPoolWords = 4;

// The mixing constants of NumPy's SeedSequence.
struct HashConstant {
  uint32_t value, multiplier;
  uint32_t operator()(uint32_t v) {
    v ^= value;
    value *= multiplier;
    v *= value;
    return v ^ (v >> 16);
  }
};

uint32_t mix(uint32_t x, uint32_t y) {
  const uint32_t r = 0xCA01F9DDu * x - 0x4973F715u * y;
  return r ^ (r >> 16);
}

// Eight output words of the sequence seeded with `seed`, paired low word first.
std::array<uint64_t, 4> seed_words(uint64_t seed) {
  HashConstant hash{0x43B0D7E5u, 0x931E8875u};
  const std::array<uint32_t, 2> entropy{static_cast<uint32_t>(seed),
                                        static_cast<uint32_t>(seed >> 32)};
  std::array<uint32_t, kPoolWords> pool{};
  for (size_t i = 0; i < kPoolWords; ++i) pool[i] = hash(i < entropy.size() ? entropy[i] : 0);
  for (size_t s = 0; s < kPoolWords; ++s)
    for (size_t t = 0; t < kPoolWords; ++t)
      if (t != s) pool[t] = mix(pool[t], hash(pool[s]));

  HashConstant output{0x8B51F9DDu, 0x58F38DEDu};
  std::array<uint64_t, 4> words{};
  for (size_t k = 0; k < 8; ++k)
    words[k / 2] |= static_cast<uint64_t>(output(pool[k % kPoolWords])) << (32 * (k % 2));
  return words;
}

constexpr unsigned __int128 u128(uint64_t high, uint64_t low) {
  return (static_cast<unsigned __int128>(high) << 64) | low;
}

constexpr unsigned __int128 kPcgMultiplier = u128(2549297995355413924u, 4865540595714422341u);

}  // namespace

NumpyGenerator::NumpyGenerator(uint64_t seed) {
  const auto s = seed_words(seed);
  increment_ = (u128(s[2], s[3]) << 1) | 1;
  state_ = increment_;  // one step from zero
  state_ += u128(s[0], s[1]);
  state_ = state_ * kPcgMultiplier + increment_;
}

uint64_t NumpyGenerator::next() {
  state_ = state_ * kPcgMultiplier + increment_;
  const auto high = static_cast<uint64_t>(state_ >> 64);
  const auto low = static_cast<uint64_t>(state_);
  return std::rotr(high ^ low, static_cast<int>(high >> 58));
}

uint64_t NumpyGenerator::below(uint64_t bound) {
  unsigned __int128 m = static_cast<unsigned __int128>(next()) * bound;
  if (static_cast<uint64_t>(m) < bound) {
    const uint64_t threshold = (0 - bound) % bound;
    while (static_cast<uint64_t>(m) < threshold) m = static_cast<unsigned __int128>(next()) * bound;
  }
  return static_cast<uint64_t>(m >> 64);
}

std::vector<int64_t> engram_multipliers(int layer, int64_t compressed_vocab_size, int count) {
  // Keeps id * multiplier below 2^63 for every compressed id.
  const int64_t bound = std::max<int64_t>(1, INT64_MAX / compressed_vocab_size / 2);
  NumpyGenerator generator(10007u * static_cast<uint64_t>(layer));
  std::vector<int64_t> multipliers(static_cast<size_t>(count));
  for (auto& m : multipliers)
    m = 2 * static_cast<int64_t>(generator.below(static_cast<uint64_t>(bound))) + 1;
  return multipliers;
}

EngramHasher::EngramHasher(const ModelConfig& config, std::vector<int32_t> token_map)
    : max_ngram_(config.engram_max_ngram),
      heads_(config.engram_n_heads),
      columns_((max_ngram_ - 1) * heads_),
      token_map_(std::move(token_map)) {
  if (static_cast<int>(token_map_.size()) != config.vocab_size)
    fail(ErrorKind::kBadCheckpoint, "Engram token map: {} entries, expected vocab_size = {}",
         token_map_.size(), config.vocab_size);
  const int64_t classes =
      token_map_.empty() ? 0 : *std::max_element(token_map_.begin(), token_map_.end()) + 1;
  if (classes != config.engram_compressed_vocab_size)
    fail(ErrorKind::kBadCheckpoint,
         "Engram token map: the tokenizer gives {} compressed ids, the config says "
         "engram_compressed_vocab_size = {}",
         classes, config.engram_compressed_vocab_size);
  pad_ = token_map_[static_cast<size_t>(config.engram_pad_id)];

  const auto primes = engram_primes(static_cast<int>(config.engram_layer_ids.size()), max_ngram_,
                                    heads_, config.engram_vocab_size);
  for (size_t t = 0; t < config.engram_layer_ids.size(); ++t) {
    Table table;
    for (const auto& order : primes[t])
      table.primes.insert(table.primes.end(), order.begin(), order.end());
    int64_t offset = 0;
    for (const int64_t prime : table.primes) {
      table.offsets.push_back(offset);
      offset += prime;
    }
    table.multipliers = engram_multipliers(config.engram_layer_ids[t],
                                           config.engram_compressed_vocab_size, max_ngram_);
    tables_.push_back(std::move(table));
  }
}

void EngramHasher::keep(const Slice& columns) {
  first_column_ = static_cast<int>(columns.begin);
  columns_ = static_cast<int>(columns.size());
}

void EngramHasher::rows(int table_index, std::span<const int32_t> tokens,
                        std::span<const uint8_t> image, int64_t pos, int64_t* out) const {
  const Table& table = tables_[static_cast<size_t>(table_index)];
  if (columns_ == 0) return;
  const int64_t base = table.offsets[static_cast<size_t>(first_column_)];
  bool blocked = false;  // sticky: an n-gram never reaches past the start or an image
  int64_t roll = 0;
  for (int shift = 0; shift < max_ngram_; ++shift) {
    const int64_t p = pos - shift;
    if (p < 0 || (!image.empty() && image[static_cast<size_t>(p)])) blocked = true;
    const int64_t id =
        blocked ? pad_ : token_map_[static_cast<size_t>(tokens[static_cast<size_t>(p)])];
    roll ^= id * table.multipliers[static_cast<size_t>(shift)];
    if (shift == 0) continue;
    for (int head = 0; head < heads_; ++head) {
      const int at = (shift - 1) * heads_ + head - first_column_;
      if (at < 0 || at >= columns_) continue;
      const auto column = static_cast<size_t>(at + first_column_);
      out[at] = roll % table.primes[column] + table.offsets[column] - base;
    }
  }
}

}  // namespace peregrine
