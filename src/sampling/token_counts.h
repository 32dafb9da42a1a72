// How often each token occurs in a sequence, for the penalties.
//
// Speculation adds drafted tokens while it processes the rows after them and removes the rejected
// ones again, so that row i is penalised exactly as a plain decode step at that place would be.
#pragma once

#include <cstdint>
#include <unordered_map>

namespace peregrine {

class TokenCounts {
 public:
  struct Entry {
    bool in_prompt = false;
    int32_t output = 0;
  };

  void add_prompt(int32_t id) { entries_[id].in_prompt = true; }
  void add(int32_t id) { ++entries_[id].output; }

  // Undoes one add() of the same id.
  void remove(int32_t id) {
    const auto found = entries_.find(id);
    if (--found->second.output == 0 && !found->second.in_prompt) entries_.erase(found);
  }

  const std::unordered_map<int32_t, Entry>& entries() const { return entries_; }

 private:
  std::unordered_map<int32_t, Entry> entries_;
};

}  // namespace peregrine
