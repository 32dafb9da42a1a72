// Memory that operations reuse: grows to the largest size asked and stays; aligned to 64 bytes.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace peregrine::cpu {

class Scratch {
 public:
  // At least `bytes`, uninitialised; what an earlier call returned is no longer valid.
  std::byte* reserve(size_t bytes) {
    if (bytes > size_) {
      data_.reset();
      data_.reset(static_cast<std::byte*>(::operator new(bytes, kAlignment)));
      size_ = bytes;
    }
    return data_.get();
  }
  template <typename T>
  T* reserve_array(size_t count) {
    return reinterpret_cast<T*>(reserve(count * sizeof(T)));
  }
  size_t bytes() const { return size_; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(std::byte* data) const { ::operator delete(data, kAlignment); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_ = 0;
};

}  // namespace peregrine::cpu
