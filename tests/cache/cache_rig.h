// A state store of tiny pages whose rows say which token prefix they were computed from.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "cache/prefix_cache.h"
#include "cache/state_store.h"
#include "checkpoint/config.h"
#include "support/fixtures.h"

namespace peregrine::test {

using Tokens = std::vector<int32_t>;

inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

inline uint64_t hash_of(std::span<const int32_t> tokens, uint64_t start) {
  uint64_t hash = mix(start + 1);
  for (const int32_t id : tokens) hash = mix(hash + static_cast<uint64_t>(id) + 1);
  return hash;
}

inline std::vector<std::byte> noise(size_t bytes, uint64_t seed) {
  std::vector<std::byte> out(bytes);
  for (size_t i = 0; i < bytes; ++i)
    out[i] = static_cast<std::byte>(mix(seed + i / 8) >> i % 8 * 8);
  return out;
}

class CacheRig {
 public:
  // Two sources, of ratio 2 and 1; four rows a page.
  explicit CacheRig(int pages = 0, int slots = 6)
      : config_(ModelConfig::load(data_path("backbone_fp32/config.json"))),
        backend_(make_backend("reference", config_, Numerics::kF32)) {
    StateOptions options{.slots = slots, .max_context = 96, .slack = 8, .rows_per_page = 4};
    if (pages > 0) {
      const StateStore probe(*backend_, config_, options);
      options.page_budget_bytes = static_cast<int64_t>(probe.page_bytes()) * pages;
    }
    state_ = std::make_unique<StateStore>(*backend_, config_, options);
  }

  StateStore& state() { return *state_; }

  void apply() { state_->apply(state_->take_updates()); }

  // Main row then index row. `salt` tells apart rows computed in different ways.
  std::vector<std::byte> row(const Tokens& tokens, int source, int64_t row, uint64_t salt) const {
    const auto prefix = std::span(tokens).first(static_cast<size_t>((row + 1) * ratio(source)));
    return noise(state_->global_bytes(source, 0, 1),
                 hash_of(prefix, salt * 8 + static_cast<uint64_t>(source)));
  }

  // Plays a step: positions [begin, end) of the sequence, in pages that were reserved and applied.
  void compute(int slot, const Tokens& tokens, int64_t begin, int64_t end, uint64_t salt = 0) {
    for (int source = 0; source < state_->sources(); ++source)
      for (int64_t r = state_->rows_of(source, begin); r < state_->rows_of(source, end); ++r)
        state_->load_global(slot, source, r, r + 1, row(tokens, source, r, salt).data());
    const auto prefix = std::span(tokens).first(static_cast<size_t>(end));
    state_->load_recent(slot, end, noise(state_->recent_bytes(), hash_of(prefix, salt)).data());
  }

  // A slot with the whole sequence.
  int fill(const Tokens& tokens, uint64_t salt = 0) {
    const int slot = state_->acquire();
    const auto length = static_cast<int64_t>(tokens.size());
    EXPECT_GE(slot, 0);
    EXPECT_TRUE(state_->reserve(slot, length, 0));
    apply();
    compute(slot, tokens, 0, length, salt);
    return slot;
  }

  std::vector<std::byte> recent(int slot, int64_t length) const {
    std::vector<std::byte> bytes(state_->recent_bytes());
    state_->save_recent(slot, length, bytes.data());
    return bytes;
  }
  std::vector<std::byte> rows(int slot, int source, int64_t length) const {
    const int64_t n = state_->rows_of(source, length);
    std::vector<std::byte> bytes(state_->global_bytes(source, 0, n));
    state_->save_global(slot, source, 0, n, bytes.data());
    return bytes;
  }
  // All global rows of the first `length` tokens, as a run of its own would have computed them.
  std::vector<std::byte> expected_rows(const Tokens& tokens, int source, int64_t length,
                                       uint64_t salt = 0) const {
    const auto n = static_cast<size_t>(state_->rows_of(source, length));
    const size_t main_row = state_->view().main_row_bytes;
    const size_t index_row = state_->view().index_row_bytes;
    std::vector<std::byte> bytes(n * (main_row + index_row));
    for (size_t r = 0; r < n; ++r) {
      const auto one = row(tokens, source, static_cast<int64_t>(r), salt);
      std::memcpy(&bytes[r * main_row], one.data(), main_row);
      std::memcpy(&bytes[n * main_row + r * index_row], &one[main_row], index_row);
    }
    return bytes;
  }
  // The recent part that compute() leaves behind, with zeros where nothing is kept.
  std::vector<std::byte> expected_recent(const Tokens& tokens, int64_t length, uint64_t salt = 0) {
    const int slot = state_->acquire();
    const auto prefix = std::span(tokens).first(static_cast<size_t>(length));
    state_->load_recent(slot, length, noise(state_->recent_bytes(), hash_of(prefix, salt)).data());
    auto bytes = recent(slot, length);
    state_->release(slot);
    return bytes;
  }

  // Saves the first `length` tokens of a slot in the cache.
  void save(PrefixCache& cache, const Tokens& tokens, int64_t length, int slot, bool exact = true) {
    cache.insert({.tokens = tokens,
                  .length = length,
                  .slot = slot,
                  .exact = exact,
                  .recent = recent(slot, length)});
  }
  // Computes a sequence, saves it and lets go of the slot.
  void store(PrefixCache& cache, const Tokens& tokens, bool exact = true, uint64_t salt = 0) {
    const int slot = fill(tokens, salt);
    save(cache, tokens, static_cast<int64_t>(tokens.size()), slot, exact);
    state_->release(slot);
  }

  // Every reference of the pool belongs to the cache or to one of the slots.
  void expect_balance(const PrefixCache* cache, std::span<const int> slots) {
    std::vector<int32_t> counts(static_cast<size_t>(state_->pool().capacity()), 0);
    if (cache != nullptr) {
      cache->count_references(counts);
      EXPECT_EQ(cache->pages(), std::ranges::count_if(counts, [](int32_t n) { return n > 0; }));
    }
    for (const int slot : slots)
      for (int source = 0; source < state_->sources(); ++source)
        for (const int32_t page : state_->pages(slot, source)) ++counts[static_cast<size_t>(page)];
    for (size_t page = 0; page < counts.size(); ++page)
      ASSERT_EQ(counts[page], state_->pool().references(static_cast<int32_t>(page)))
          << "page " << page;
  }

 private:
  int ratio(int source) const {
    return config_.ratio(config_.kv_source_layers[static_cast<size_t>(source)]);
  }

  ModelConfig config_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<StateStore> state_;
};

// `n` ids that depend on the seed.
inline Tokens sequence(size_t n, uint64_t seed = 0) {
  Tokens tokens(n);
  for (size_t i = 0; i < n; ++i) tokens[i] = static_cast<int32_t>(mix(seed * 1000 + i + 1) % 200);
  return tokens;
}

inline Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace peregrine::test
