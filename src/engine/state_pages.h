// A saved state cut into pages of an engine, ready to be given to a slot.
//
// Made in the thread that submits a request, so that the engine's thread copies nothing that grows
// with the context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cache/state_store.h"
#include "engine/saved_state.h"

namespace peregrine {

struct StatePages {
  int64_t length = 0;  // tokens
  int64_t common = 0;  // of them, the first ones that the request begins with
  bool exact = true;   // SavedState::exact
  std::vector<std::byte> recent;
  struct Page {
    int source = 0;
    int64_t index = 0;
    std::shared_ptr<const std::vector<std::byte>> content;
  };
  std::vector<Page> pages;  // by index: the first ones are those of a shorter prefix
  std::shared_ptr<const SavedState> source;  // lives as long, so that its owner sees it in use
};

// `prompt`: the request's tokens. Pages that only rows behind the common prefix need are left out.
StatePages cut_into_pages(std::shared_ptr<const SavedState> source, const StateStore& state,
                          const std::vector<int32_t>& prompt);

}  // namespace peregrine
