// Values that ranks send each other, as they lie in memory: all ranks run the same build.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/fail.h"
#include "parallel/communicator.h"

namespace peregrine {

class BytesWriter {
 public:
  template <typename T>
  BytesWriter& put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    append(&value, sizeof(T));
    return *this;
  }
  // Contiguous values behind their number: a vector, span or string.
  template <typename List>
  BytesWriter& put_list(const List& list) {
    const std::span values(list);
    static_assert(std::is_trivially_copyable_v<typename decltype(values)::value_type>);
    put(static_cast<uint64_t>(values.size()));
    append(values.data(), values.size_bytes());
    return *this;
  }
  const Bytes& bytes() const { return bytes_; }
  Bytes take() { return std::move(bytes_); }
  void clear() { bytes_.clear(); }

 private:
  void append(const void* data, size_t size) {
    const auto* p = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), p, p + size);
  }
  Bytes bytes_;
};

// Takes the values in the order in which they were put; past the end it throws Error(kInternal).
class BytesReader {
 public:
  // `what` names the bytes in that sentence; it outlives the reader.
  BytesReader(std::span<const std::byte> bytes, const char* what) : bytes_(bytes), what_(what) {}

  bool done() const { return bytes_.empty(); }
  template <typename T>
  void read(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::memcpy(static_cast<void*>(&value), cut(sizeof(T)), sizeof(T));
  }
  template <typename List>
  void read_list(List& list) {
    using T = typename List::value_type;
    static_assert(std::is_trivially_copyable_v<T>);
    const auto size = take<uint64_t>();
    if (size > bytes_.size() / sizeof(T))
      fail(ErrorKind::kInternal, "{} has a list of {} in {} bytes", what_, size, bytes_.size());
    list.resize(size);
    const std::byte* from = cut(size * sizeof(T));
    if (size > 0) std::memcpy(static_cast<void*>(list.data()), from, size * sizeof(T));
  }
  template <typename T>
  T take() {
    T value;
    read(value);
    return value;
  }
  template <typename T>
  std::vector<T> take_list() {
    std::vector<T> list;
    read_list(list);
    return list;
  }

 private:
  const std::byte* cut(size_t size) {
    if (size > bytes_.size())
      fail(ErrorKind::kInternal, "{} ends {} bytes early", what_, size - bytes_.size());
    const std::byte* at = bytes_.data();
    bytes_ = bytes_.subspan(size);
    return at;
  }
  std::span<const std::byte> bytes_;
  const char* what_;
};

}  // namespace peregrine
