#include "backend/cpu/top_k.h"

#include <bit>
#include <cmath>
#include <limits>

namespace peregrine::cpu {
namespace {

constexpr uint32_t kMinusInfinityKey = ~0xFF800000u;

// Unsigned numbers in the order of the floats.
uint32_t sort_key(float score) {
  if (std::isnan(score)) return kMinusInfinityKey;
  if (score == 0.0f) score = 0.0f;  // -0 equals +0
  const uint32_t bits = std::bit_cast<uint32_t>(score);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

struct Threshold {
  uint32_t key = 0;    // the k-th best key
  int64_t equals = 0;  // how many of that key are among the k best
};

// Digit by digit from the top: each pass counts the keys that share the digits found so far.
Threshold kth_best(const float* scores, int64_t n, int64_t k) {
  Threshold threshold{.key = 0, .equals = k};
  for (int shift = 24; shift >= 0; shift -= 8) {
    int64_t counts[256] = {};
    const uint32_t known = shift == 24 ? 0 : ~uint32_t{0} << (shift + 8);
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t key = sort_key(scores[i]);
      if ((key & known) == threshold.key) ++counts[(key >> shift) & 255];
    }
    int digit = 255;
    while (counts[digit] < threshold.equals) threshold.equals -= counts[digit--];
    threshold.key |= static_cast<uint32_t>(digit) << shift;
  }
  return threshold;
}

}  // namespace

int64_t top_k(const float* scores, int64_t n, int64_t k, bool skip_infinite, int32_t* out) {
  if (k <= 0) return 0;
  const Threshold threshold = n > k ? kth_best(scores, n, k) : Threshold{.key = 0, .equals = n};
  const bool all = n <= k;
  int64_t equals = threshold.equals;
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t key = sort_key(scores[i]);
    bool chosen = all || key > threshold.key;
    if (!chosen && key == threshold.key && equals > 0) {
      --equals;
      chosen = true;
    }
    if (chosen && skip_infinite && key == kMinusInfinityKey) chosen = false;
    if (chosen) out[count++] = static_cast<int32_t>(i);
  }
  return count;
}

}  // namespace peregrine::cpu
