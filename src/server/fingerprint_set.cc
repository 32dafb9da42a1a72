#include "server/fingerprint_set.h"

#include <functional>

namespace peregrine {

FingerprintSet::Print FingerprintSet::print_of(std::string_view text) {
  uint64_t fnv = 0xcbf29ce484222325;  // FNV-1a, then mixed: its low bits alone are weak
  for (const char c : text) fnv = (fnv ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  fnv = (fnv ^ (fnv >> 32)) * 0x9e3779b97f4a7c15;
  return {std::hash<std::string_view>{}(text), (fnv ^ (fnv >> 29)) | 1};
}

bool FingerprintSet::place(Print print) {
  const size_t mask = slots_.size() - 1;
  for (size_t at = print.first & mask;; at = (at + 1) & mask) {
    Print& slot = slots_[at];
    if (slot.second == 0) {
      slot = print;
      return true;
    }
    if (slot.first == print.first && slot.second == print.second) return false;
  }
}

bool FingerprintSet::insert(std::string_view text) {
  if (4 * (size_ + 1) > 3 * slots_.size()) {
    std::vector<Print> old(slots_.empty() ? 64 : 2 * slots_.size());
    old.swap(slots_);
    for (const Print& print : old)
      if (print.second != 0) place(print);
  }
  if (!place(print_of(text))) return false;
  ++size_;
  return true;
}

}  // namespace peregrine
