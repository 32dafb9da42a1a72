#include "engine/state_pages.h"

#include <algorithm>
#include <utility>

namespace peregrine {

StatePages cut_into_pages(std::shared_ptr<const SavedState> source, const StateStore& state,
                          const std::vector<int32_t>& prompt) {
  const SavedState& saved = *source;
  StatePages out{.length = saved.length(), .exact = saved.exact, .recent = {}, .pages = {}};
  out.common =
      std::mismatch(saved.tokens.begin(), saved.tokens.end(), prompt.begin(), prompt.end()).first -
      saved.tokens.begin();
  if (out.common == out.length) out.recent = saved.recent;
  const int64_t rows_per_page = state.options().rows_per_page;
  for (int source = 0; source < state.sources(); ++source) {
    const SavedState::Source& from = saved.sources[static_cast<size_t>(source)];
    const int64_t rows = state.rows_of(source, out.common);
    for (int64_t row = 0; row < rows; row += rows_per_page) {
      const std::byte* main =
          from.main.data() + static_cast<size_t>(row) * state.view().main_row_bytes;
      const std::byte* index =
          from.index.data() + static_cast<size_t>(row) * state.view().index_row_bytes;
      out.pages.push_back({.source = source,
                           .index = row / rows_per_page,
                           .content = std::make_shared<const std::vector<std::byte>>(
                               state.page_of(std::min(rows_per_page, rows - row), main, index))});
    }
  }
  std::stable_sort(out.pages.begin(), out.pages.end(),
                   [](const auto& a, const auto& b) { return a.index < b.index; });
  out.source = std::move(source);
  return out;
}

}  // namespace peregrine
