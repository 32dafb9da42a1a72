#include "engine/saved_state.h"

#include <fmt/format.h>

namespace peregrine {

std::string misfit(const SavedState& state, const StateShape& shape) {
  const int64_t length = state.length();
  if (length < 1 || length > shape.context_tokens)
    return fmt::format("a state of {} tokens, expected 1 to {}", length, shape.context_tokens);
  for (int64_t i = 0; i < length; ++i)
    if (const int32_t id = state.tokens[static_cast<size_t>(i)]; id < 0 || id >= shape.vocab_size)
      return fmt::format("token {} at position {}, expected 0 to {}", id, i, shape.vocab_size - 1);
  if (!state.recent.empty() && state.recent.size() != shape.recent_bytes)
    return fmt::format("a recent part of {} bytes, expected {}", state.recent.size(),
                       shape.recent_bytes);
  if (state.sources.size() != shape.sources.size())
    return fmt::format("rows of {} KV sources, expected {}", state.sources.size(),
                       shape.sources.size());
  for (size_t i = 0; i < shape.sources.size(); ++i) {
    const auto rows = static_cast<uint64_t>(shape.rows(i, length));
    const uint64_t main = rows * shape.sources[i].main_row_bytes;
    const uint64_t index = rows * shape.sources[i].index_row_bytes;
    if (state.sources[i].main.size() != main || state.sources[i].index.size() != index)
      return fmt::format("{} + {} bytes of rows of KV source {}, expected {} + {}",
                         state.sources[i].main.size(), state.sources[i].index.size(), i, main,
                         index);
  }
  return {};
}

}  // namespace peregrine
