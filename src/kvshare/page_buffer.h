// Page-aligned memory of its own mapping, zero until written: what images of states lie in.
//
// Pages that nobody touches cost no memory, so a partly read image may reserve its full size.
#pragma once

#include <sys/mman.h>

#include <cassert>
#include <cstddef>
#include <span>
#include <utility>

#include "base/fail.h"

namespace peregrine {

class PageBuffer {
 public:
  PageBuffer() = default;
  // Throws Error(kOutOfMemory).
  explicit PageBuffer(size_t bytes) : bytes_(bytes), capacity_(bytes) {
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
      fail(ErrorKind::kOutOfMemory, "{} bytes of memory for a saved state cannot be mapped", bytes);
    // Fewer page faults where the system allows it; no loss where it does not.
    ::madvise(at, bytes, MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(at);
  }
  PageBuffer(PageBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  PageBuffer& operator=(PageBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  ~PageBuffer() {
    if (data_ != nullptr) ::munmap(data_, capacity_);
  }

  std::span<std::byte> bytes() { return {data_, bytes_}; }
  std::span<const std::byte> bytes() const { return {data_, bytes_}; }
  size_t capacity() const { return capacity_; }
  void resize(size_t bytes) {  // up to capacity(); what was written stays
    assert(bytes <= capacity_);
    bytes_ = bytes;
  }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  size_t capacity_ = 0;
};

}  // namespace peregrine
