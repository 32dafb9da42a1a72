#include "cache/page_pool.h"

#include <cassert>

namespace peregrine {

PagePool::PagePool(int pages) : references_(static_cast<size_t>(pages), 0) {
  free_.reserve(references_.size());
  for (int page = pages - 1; page >= 0; --page) free_.push_back(page);
}

int32_t PagePool::allocate() {
  if (free_.empty()) return -1;
  const int32_t page = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(page)] = 1;
  return page;
}

void PagePool::add_reference(int32_t page) {
  assert(references(page) > 0);
  ++references_[static_cast<size_t>(page)];
}

void PagePool::release(int32_t page) {
  assert(references(page) > 0);
  if (--references_[static_cast<size_t>(page)] == 0) free_.push_back(page);
}

}  // namespace peregrine
