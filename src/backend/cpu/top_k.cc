// The best of a long score list in linear time, for every Highway target. Scores become unsigned
// numbers in their order; the k-th best of them is found bit by bit from the top among those that
// share the bits found so far, a list that shrinks as it goes.
#include "backend/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/top_k.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <bit>

#include "backend/cpu/kernels.h"
#include "backend/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace peregrine::cpu::HWY_NAMESPACE {
namespace {

constexpr uint32_t kMinusInfinityKey = ~0xFF800000u;
constexpr int64_t kStep = static_cast<int64_t>(kVectorLanes);

using MaskBits = uint32_t;
using Mask = decltype(hn::Eq(BitsVector(), BitsVector()));

// A bit a lane, lane 0 lowest.
HWY_INLINE MaskBits bits_of(Mask mask) {
  uint8_t bytes[8] = {};  // what StoreMaskBits may write
  hn::StoreMaskBits(BitsTag(), mask, bytes);
  return bytes[0] | static_cast<MaskBits>(bytes[1]) << 8;
}

// Unsigned numbers in the order of the floats; -0 equals +0, NaN counts as -infinity.
HWY_INLINE BitsVector sort_keys(FloatVector scores) {
  const BitsTag bits_tag;
  const hn::RebindToSigned<BitsTag> signed_tag;
  scores = hn::Add(scores, hn::Zero(FloatTag()));
  const auto is_number = hn::RebindMask(bits_tag, hn::Eq(scores, scores));
  const BitsVector bits = hn::BitCast(bits_tag, scores);
  const BitsVector negative =
      hn::BitCast(bits_tag, hn::ShiftRight<31>(hn::BitCast(signed_tag, bits)));
  const BitsVector keys = hn::Xor(bits, hn::Or(negative, hn::Set(bits_tag, 0x80000000u)));
  return hn::IfThenElse(is_number, keys, hn::Set(bits_tag, kMinusInfinityKey));
}

// Of `count` scores, at most a vector; the lanes beyond are key 0, below that of every score.
HWY_INLINE BitsVector sort_keys_of(const float* scores, int64_t count) {
  if (count >= kStep) return sort_keys(hn::LoadU(FloatTag(), scores));
  HWY_ALIGN float some[kVectorLanes] = {};
  for (int64_t i = 0; i < count; ++i) some[i] = scores[i];
  const auto in_range = hn::FirstN(BitsTag(), static_cast<size_t>(count));
  return hn::IfThenElseZero(in_range, sort_keys(hn::Load(FloatTag(), some)));
}

// Keys that share the bits found so far.
struct Candidates {
  uint32_t* keys;
  int64_t count;
  uint32_t differing;  // bits that are not the same in all of them
};

HWY_INLINE uint32_t or_lanes(BitsVector bits) {
  HWY_ALIGN uint32_t lanes[kVectorLanes];
  hn::Store(bits, BitsTag(), lanes);
  uint32_t all = 0;
  for (const uint32_t lane : lanes) all |= lane;
  return all;
}

HWY_INLINE Mask has_bit(BitsVector keys, BitsVector bit) { return hn::Eq(hn::And(keys, bit), bit); }

HWY_INLINE Mask lanes_up_to(int64_t count) {
  return hn::FirstN(BitsTag(), static_cast<size_t>(count < kStep ? count : kStep));
}

Candidates all_candidates(const float* scores, int64_t n, uint32_t* keys) {
  const BitsTag bits_tag;
  const BitsVector first = hn::Set(bits_tag, hn::GetLane(sort_keys_of(scores, n)));
  BitsVector differing = hn::Zero(bits_tag);
  for (int64_t i = 0; i < n; i += kStep) {
    const BitsVector some = sort_keys_of(scores + i, n - i);
    hn::StoreU(some, bits_tag, keys + i);
    differing = hn::Or(differing, hn::IfThenElseZero(lanes_up_to(n - i), hn::Xor(some, first)));
  }
  return {keys, n, or_lanes(differing)};
}

int64_t count_with(const Candidates& candidates, uint32_t bit) {
  const BitsTag bits_tag;
  const BitsVector wanted = hn::Set(bits_tag, bit);
  int64_t count = 0;
  for (int64_t i = 0; i < candidates.count; i += kStep) {
    const BitsVector keys = hn::LoadU(bits_tag, candidates.keys + i);
    const auto some = hn::And(has_bit(keys, wanted), lanes_up_to(candidates.count - i));
    count += static_cast<int64_t>(hn::CountTrue(bits_tag, some));
  }
  return count;
}

// Drops the keys whose `bit` is not `set`. In place: a vector is read before it can be overwritten.
void keep(Candidates& candidates, uint32_t bit, bool set) {
  const BitsTag bits_tag;
  const BitsVector looked_at = hn::Set(bits_tag, bit);
  const BitsVector wanted = hn::Set(bits_tag, set ? bit : 0u);
  BitsVector all_or = hn::Zero(bits_tag), all_and = hn::Set(bits_tag, ~0u);
  int64_t count = 0;
  for (int64_t i = 0; i < candidates.count; i += kStep) {
    const BitsVector keys = hn::LoadU(bits_tag, candidates.keys + i);
    const auto some =
        hn::And(hn::Eq(hn::And(keys, looked_at), wanted), lanes_up_to(candidates.count - i));
    all_or = hn::Or(all_or, hn::IfThenElseZero(some, keys));
    all_and = hn::And(all_and, hn::IfThenElse(some, keys, hn::Set(bits_tag, ~0u)));
    hn::StoreU(hn::Compress(keys, some), bits_tag, candidates.keys + count);
    count += static_cast<int64_t>(hn::CountTrue(bits_tag, some));
  }
  candidates.count = count;
  candidates.differing = or_lanes(all_or) & or_lanes(hn::Not(all_and));
}

struct Threshold {
  uint32_t key = 0;    // the k-th best key
  int64_t equals = 0;  // how many of that key are among the k best
};

Threshold kth_best(const float* scores, int64_t n, int64_t k, uint32_t* scratch) {
  Candidates candidates = all_candidates(scores, n, scratch);
  while (candidates.differing != 0) {
    const uint32_t bit = std::bit_floor(candidates.differing);
    const int64_t above = count_with(candidates, bit);
    const bool among_them = above >= k;
    if (!among_them) k -= above;
    keep(candidates, bit, among_them);
  }
  return {.key = candidates.keys[0], .equals = k};
}

int64_t top_k(const TopKArgs& args) {
  if (args.k <= 0 || args.n <= 0) return 0;
  const bool all = args.n <= args.k;
  const Threshold threshold =
      all ? Threshold{} : kth_best(args.scores, args.n, args.k, args.scratch);
  const BitsTag bits_tag;
  const BitsVector limit = hn::Set(bits_tag, threshold.key);
  const BitsVector infinite = hn::Set(bits_tag, kMinusInfinityKey);
  int64_t equals = threshold.equals;
  int64_t count = 0;
  for (int64_t i = 0; i < args.n; i += kStep) {
    const BitsVector keys = sort_keys_of(args.scores + i, args.n - i);
    const auto not_below = hn::Eq(hn::Max(keys, limit), keys);
    MaskBits chosen = bits_of(hn::And(not_below, lanes_up_to(args.n - i)));
    if (chosen == 0) continue;
    // Ties go to the lower index.
    MaskBits ties = all ? 0 : chosen & bits_of(hn::Eq(keys, limit));
    for (; ties != 0; ties &= ties - 1) {
      if (equals > 0) {
        --equals;
      } else {
        chosen &= ~(ties & -ties);
      }
    }
    if (args.skip_infinite) chosen &= ~bits_of(hn::Eq(keys, infinite));
    for (; chosen != 0; chosen &= chosen - 1)
      args.out[count++] = static_cast<int32_t>(i + std::countr_zero(chosen));
  }
  return count;
}

TopK make_kernel() { return &top_k; }

}  // namespace
}  // namespace peregrine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace peregrine::cpu {

HWY_EXPORT(make_kernel);

TopK top_k_kernel(int64_t target) {
  return HWY_DISPATCH_TABLE(make_kernel)[target_index(target)]();
}

}  // namespace peregrine::cpu
#endif
