// The state of a shorter prefix, cut out of a longer one's: what a partial read has to give.
#pragma once

#include <vector>

#include "engine/saved_state.h"

namespace peregrine::test {

// The state of the first `tokens` positions: rows only unless that is all of it.
inline SavedState leading_part(const SavedState& state, const StateShape& shape, int64_t tokens) {
  if (tokens == state.length()) return state;
  SavedState part{.tokens = {state.tokens.begin(), state.tokens.begin() + tokens},
                  .exact = state.exact,
                  .recent = {},
                  .sources = {}};
  for (size_t i = 0; i < shape.sources.size(); ++i) {
    const auto rows = shape.rows(i, tokens);
    const auto first = [rows](const std::vector<std::byte>& bytes, uint64_t row_bytes) {
      return std::vector<std::byte>(bytes.begin(),
                                    bytes.begin() + rows * static_cast<int64_t>(row_bytes));
    };
    part.sources.push_back({first(state.sources[i].main, shape.sources[i].main_row_bytes),
                            first(state.sources[i].index, shape.sources[i].index_row_bytes)});
  }
  return part;
}

}  // namespace peregrine::test
