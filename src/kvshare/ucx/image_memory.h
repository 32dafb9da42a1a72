// The memory of states that are read from other servers: a budget in bytes, and pages that earlier
// reads have left.
//
// Fresh pages cost as much time as the bytes that are read into them, because the system clears
// them first; pages of an image that is gone are used again. What they hold then is anything: a
// reader has to look only at what it has filled. Thread-safe; shared with images that outlive the
// client.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>

#include "kvshare/page_buffer.h"

namespace peregrine {

class ImageMemory {
 public:
  explicit ImageMemory(uint64_t limit_bytes) : limit_(limit_bytes) {}

  // False: it does not fit into the budget. Unused pages give way.
  bool reserve(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (bytes > limit_ || used_ > limit_ - bytes) return false;
    used_ += bytes;
    drop_unused(limit_ - used_);
    return true;
  }
  void release(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    used_ -= bytes;
  }
  uint64_t used() const {  // reserved bytes
    const std::lock_guard lock(mutex_);
    return used_;
  }

  // Throws Error(kOutOfMemory).
  PageBuffer take(uint64_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      // One that is far too large would be missed by a larger image.
      const auto fits = [bytes](const PageBuffer& buffer) {
        return buffer.capacity() >= bytes && buffer.capacity() / kMostTimesTooLarge <= bytes;
      };
      const auto at = std::find_if(unused_.rbegin(), unused_.rend(), fits);
      if (at != unused_.rend()) {
        PageBuffer buffer = std::move(*at);
        unused_.erase(std::next(at).base());
        unused_bytes_ -= buffer.capacity();
        buffer.resize(bytes);
        return buffer;
      }
    }
    return PageBuffer(bytes);
  }
  // Keeps pages for later, at most a quarter of the budget.
  void give(PageBuffer buffer) {
    const std::lock_guard lock(mutex_);
    unused_bytes_ += buffer.capacity();
    unused_.push_back(std::move(buffer));
    drop_unused(std::min(limit_ / 4, limit_ - used_));
  }

 private:
  static constexpr uint64_t kMostTimesTooLarge = 2;

  void drop_unused(uint64_t down_to) {  // oldest first
    auto end = unused_.begin();
    for (; unused_bytes_ > down_to; ++end) unused_bytes_ -= end->capacity();
    unused_.erase(unused_.begin(), end);
  }

  const uint64_t limit_;
  mutable std::mutex mutex_;
  uint64_t used_ = 0;
  std::vector<PageBuffer> unused_;
  uint64_t unused_bytes_ = 0;
};

}  // namespace peregrine
