// States of a small shape with bytes that depend on token position, source and array, so that a
// byte in the wrong place shows.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "engine/saved_state.h"
#include "kvshare/state_image.h"

namespace peregrine::test {

inline StateShape small_shape() {
  StateShape shape;
  shape.fingerprint.fill(std::byte{0x5a});
  shape.vocab_size = 1000;
  shape.context_tokens = 1 << 20;
  shape.recent_bytes = 5000;
  shape.sources = {{.ratio = 2, .main_row_bytes = 288, .index_row_bytes = 68},
                   {.ratio = 1, .main_row_bytes = 96, .index_row_bytes = 20}};
  return shape;
}

inline std::vector<std::byte> noise(uint64_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> out(bytes);
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  return out;
}

inline SavedState random_state(const StateShape& shape, int64_t tokens, uint64_t seed,
                               bool with_recent = true) {
  std::mt19937_64 random(seed);
  SavedState state;
  for (int64_t i = 0; i < tokens; ++i)
    state.tokens.push_back(static_cast<int32_t>(random() % shape.vocab_size));
  for (size_t i = 0; i < shape.sources.size(); ++i) {
    const auto rows = static_cast<uint64_t>(shape.rows(i, tokens));
    state.sources.push_back({noise(rows * shape.sources[i].main_row_bytes, seed + 2 * i + 1),
                             noise(rows * shape.sources[i].index_row_bytes, seed + 2 * i + 2)});
  }
  if (with_recent) state.recent = noise(shape.recent_bytes, seed + 100);
  return state;
}

inline void expect_same(const SavedState& a, const SavedState& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.exact, b.exact);
  EXPECT_TRUE(a.recent == b.recent);
  ASSERT_EQ(a.sources.size(), b.sources.size());
  for (size_t i = 0; i < a.sources.size(); ++i) {
    EXPECT_TRUE(a.sources[i].main == b.sources[i].main) << "source " << i;
    EXPECT_TRUE(a.sources[i].index == b.sources[i].index) << "source " << i;
  }
}

}  // namespace peregrine::test
