// A run of rows, columns or experts: what one of several ranks holds.
#pragma once

#include <cstdint>

namespace peregrine {

struct Slice {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool holds(int64_t i) const { return i >= begin && i < end; }
};

}  // namespace peregrine
