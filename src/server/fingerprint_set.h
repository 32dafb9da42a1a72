// A set of strings that keeps 16 bytes of each: which custom_ids a batch has had.
//
// Two strings count as one when two independent hashes of 64 bits are equal, which for a billion
// strings has a chance of about 1e-20.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace peregrine {

class FingerprintSet {
 public:
  // False: it was there.
  bool insert(std::string_view text);
  size_t size() const { return size_; }

 private:
  struct Print {
    uint64_t first = 0, second = 0;  // the second is odd; 0: an empty slot
  };
  static Print print_of(std::string_view text);
  bool place(Print print);

  std::vector<Print> slots_;  // a power of two, at most three quarters full; linear probing
  size_t size_ = 0;
};

}  // namespace peregrine
