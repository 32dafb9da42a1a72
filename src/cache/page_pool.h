// Reference-counted fixed-size pages of the global KV cache.
//
// The pool hands out page numbers; the bytes live in one block of backend memory owned by
// StateStore. Host-side bookkeeping only, not thread-safe: its owner serialises access.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace peregrine {

class PagePool {
 public:
  explicit PagePool(int pages);

  int capacity() const { return static_cast<int>(references_.size()); }
  int free_pages() const { return static_cast<int>(free_.size()); }
  int used_pages() const { return capacity() - free_pages(); }

  // A page with one reference, or -1 when none is free. Its content is undefined.
  int32_t allocate();
  void add_reference(int32_t page);
  // Drops one reference; the page is free again when it was the last.
  void release(int32_t page);
  int references(int32_t page) const { return references_[static_cast<size_t>(page)]; }

 private:
  std::vector<int32_t> references_;  // 0 = free
  std::vector<int32_t>
      free_;  // stack; low numbers first, so that a lazily committed pool stays small
};

}  // namespace peregrine
