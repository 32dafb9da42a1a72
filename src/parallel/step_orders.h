// What the leading rank of a tensor-parallel group tells the others, as bytes.
//
// A message is a run of orders; an order is its kind and its fields, as they lie in memory: all
// ranks run the same build. Reading past the end is an Error(kInternal).
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "base/fail.h"
#include "parallel/communicator.h"

namespace peregrine {

enum class OrderKind : uint8_t {
  kStore,      // make a store of these StateOptions; an earlier one goes with what runs on it
  kForward,    // make a Forward: max rows
  kDrafter,    // make a Drafter: max rows, max segments
  kPages,      // apply page updates
  kRecent,     // load a slot's recent part
  kStep,       // run a step
  kDrafts,     // begin drafts
  kDraftSlot,  // one slot of them
  kEnd,        // no more orders
};

// Tokens before a segment's first position that its n-grams may reach back to.
constexpr int64_t kOrderHistory = 16;

class OrderWriter {
 public:
  template <typename T>
  OrderWriter& put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    append(&value, sizeof(T));
    return *this;
  }
  template <typename T>
  OrderWriter& put_list(std::span<const T> values) {
    put(static_cast<uint64_t>(values.size()));
    append(values.data(), values.size_bytes());
    return *this;
  }
  const Bytes& bytes() const { return bytes_; }
  void clear() { bytes_.clear(); }

 private:
  void append(const void* data, size_t size) {
    const auto* p = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), p, p + size);
  }
  Bytes bytes_;
};

class OrderReader {
 public:
  explicit OrderReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool done() const { return bytes_.empty(); }
  template <typename T>
  T take() {
    T value;
    std::memcpy(&value, cut(sizeof(T)), sizeof(T));
    return value;
  }
  template <typename T>
  std::vector<T> take_list() {
    const auto size = take<uint64_t>();
    if (size > bytes_.size() / sizeof(T)) cut(bytes_.size() + 1);
    std::vector<T> values(size);
    const std::byte* from = cut(size * sizeof(T));
    if (size > 0) std::memcpy(values.data(), from, size * sizeof(T));
    return values;
  }

 private:
  const std::byte* cut(size_t size) {
    if (size > bytes_.size())
      fail(ErrorKind::kInternal, "an order of the leading rank ends {} bytes early",
           size - bytes_.size());
    const std::byte* at = bytes_.data();
    bytes_ = bytes_.subspan(size);
    return at;
  }
  std::span<const std::byte> bytes_;
};

}  // namespace peregrine
