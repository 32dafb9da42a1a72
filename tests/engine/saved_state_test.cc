// What a state from elsewhere must look like, and the leading part of one.
#include "engine/saved_state.h"

#include <gtest/gtest.h>

#include "support/leading_part.h"

namespace peregrine::test {
namespace {

StateShape shape() {
  return {.compatibility = {},
          .vocab_size = 10,
          .context_tokens = 8,
          .recent_bytes = 3,
          .sources = {{.ratio = 1, .main_row_bytes = 2, .index_row_bytes = 1},
                      {.ratio = 2, .main_row_bytes = 4, .index_row_bytes = 3}}};
}

std::vector<std::byte> counted(size_t count, int from) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(from + static_cast<int>(i));
  return bytes;
}

SavedState state() {  // 5 tokens: 5 rows of the first source, 2 of the second
  return {.tokens = {1, 2, 3, 4, 5},
          .recent = counted(3, 0),
          .sources = {{counted(10, 10), counted(5, 30)}, {counted(8, 40), counted(6, 60)}}};
}

TEST(SavedState, MisfitNamesWhatIsWrong) {
  EXPECT_EQ(misfit(state(), shape()), "");
  SavedState s = state();
  s.recent.clear();
  EXPECT_EQ(misfit(s, shape()), "") << "rows alone are a state";
  s = state();
  s.tokens[4] = 10;
  EXPECT_EQ(misfit(s, shape()), "token 10 at position 4, expected 0 to 9");
  s = state();
  s.tokens.resize(9);
  EXPECT_EQ(misfit(s, shape()), "a state of 9 tokens, expected 1 to 8");
  s = state();
  s.recent.resize(2);
  EXPECT_EQ(misfit(s, shape()), "a recent part of 2 bytes, expected 3");
  s = state();
  s.sources.pop_back();
  EXPECT_EQ(misfit(s, shape()), "rows of 1 KV sources, expected 2");
  s = state();
  s.sources[1].index.pop_back();
  EXPECT_EQ(misfit(s, shape()), "8 + 5 bytes of rows of KV source 1, expected 8 + 6");
}

TEST(SavedState, LeadingPartKeepsRowsAndDropsTheRecentPart) {
  const SavedState part = leading_part(state(), shape(), 3);
  EXPECT_EQ(misfit(part, shape()), "");
  EXPECT_EQ(part.tokens, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_TRUE(part.recent.empty());
  EXPECT_EQ(part.sources[0].main, counted(6, 10));
  EXPECT_EQ(part.sources[1].main, counted(4, 40));
  EXPECT_EQ(part.sources[1].index, counted(3, 60));
  EXPECT_EQ(leading_part(state(), shape(), 5).recent, counted(3, 0));
  EXPECT_EQ(shape().row_bytes(5), 5u * 3 + 2u * 7);
}

}  // namespace
}  // namespace peregrine::test
