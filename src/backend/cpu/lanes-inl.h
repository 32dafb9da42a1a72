// Sixteen float lanes on every target, as one vector or several: the unit in
// which kernels sum, so that results do not depend on vector width.
//
// Included once per Highway target by the kernel files, inside nothing.
#if defined(PEREGRINE_CPU_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PEREGRINE_CPU_LANES_INL_H_
#undef PEREGRINE_CPU_LANES_INL_H_
#else
#define PEREGRINE_CPU_LANES_INL_H_
#endif

#include <hwy/highway.h>

#ifndef PEREGRINE_UNROLL
#define PEREGRINE_UNROLL _Pragma("GCC unroll 16")
#endif

HWY_BEFORE_NAMESPACE();
namespace peregrine::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, 16>;
using BitsTag = hn::RebindToUnsigned<FloatTag>;
using FloatVector = hn::Vec<FloatTag>;
using BitsVector = hn::Vec<BitsTag>;
constexpr size_t kVectorLanes = hn::MaxLanes(FloatTag());
constexpr size_t kParts = 16 / kVectorLanes;

// ---- one vector ---------------------------------------------------------------------------------

// To bf16, to nearest even; inputs are not NaN.
HWY_INLINE FloatVector round_vector(FloatVector x) {
  const BitsTag bits_tag;
  const BitsVector bits = hn::BitCast(bits_tag, x);
  const BitsVector odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(bits_tag, 1u));
  const BitsVector rounded = hn::Add(bits, hn::Add(odd, hn::Set(bits_tag, 0x7FFFu)));
  return hn::BitCast(FloatTag(), hn::And(rounded, hn::Set(bits_tag, 0xFFFF0000u)));
}

// Values of e2m1 codes in the low four bits. Codes from 2 only change the
// exponent's bias; the codes 0 and 1, read as normal numbers of exponent 0,
// would be (1 + m/2) / 2 where m/2 is meant.
HWY_INLINE FloatVector e2m1_vector(BitsVector code) {
  const BitsTag bits_tag;
  const FloatTag tag;
  const BitsVector magnitude = hn::And(code, hn::Set(bits_tag, 7u));
  const BitsVector sign = hn::ShiftLeft<28>(hn::And(code, hn::Set(bits_tag, 8u)));
  const FloatVector normal =
      hn::BitCast(tag, hn::Add(hn::ShiftLeft<22>(magnitude), hn::Set(bits_tag, 126u << 23)));
  const FloatVector subnormal = hn::Sub(hn::Add(normal, normal), hn::Set(tag, 1.0f));
  const auto is_subnormal =
      hn::RebindMask(tag, hn::Lt(hn::BitCast(hn::RebindToSigned<BitsTag>(), magnitude),
                                 hn::Set(hn::RebindToSigned<BitsTag>(), 2)));
  return hn::Or(hn::IfThenElse(is_subnormal, subnormal, normal), hn::BitCast(tag, sign));
}

HWY_INLINE BitsVector load_bytes(const uint8_t* bytes) {
  const hn::Rebind<uint8_t, BitsTag> bytes_tag;
  return hn::PromoteTo(BitsTag(), hn::LoadU(bytes_tag, bytes));
}

// Values of e4m3 codes, over 256: fp16 has the same form with one more exponent
// bit, keeps subnormal codes and has a bias that is larger by 8. NaN codes give
// NaN.
HWY_INLINE FloatVector e4m3_over_256(const uint8_t* codes) {
  const hn::Rebind<uint8_t, FloatTag> bytes_tag;
  const hn::Rebind<int16_t, FloatTag> words_tag;
  const hn::RebindToUnsigned<decltype(words_tag)> bits_tag;
  const auto words = hn::BitCast(
      words_tag, hn::ShiftLeft<8>(hn::PromoteTo(bits_tag, hn::LoadU(bytes_tag, codes))));
  // The arithmetic shift copies the sign; the exponent's new bit is cleared.
  const auto half =
      hn::And(hn::ShiftRight<1>(words), hn::Set(words_tag, static_cast<int16_t>(0xBFFF)));
  const auto magnitude = hn::And(half, hn::Set(words_tag, int16_t{0x7FFF}));
  const auto is_nan = hn::Eq(magnitude, hn::Set(words_tag, int16_t{0x3F80}));
  const auto patched = hn::Or(half, hn::VecFromMask(words_tag, is_nan));
  const hn::Rebind<hwy::float16_t, FloatTag> half_tag;
  return hn::PromoteTo(FloatTag(), hn::BitCast(half_tag, patched));
}

// Sixteen e2m1 values times a scale, as far as they fit a vector; a block
// shares them.
struct E2m1Table {
  FloatVector values;
  FloatVector scale;
};

HWY_INLINE E2m1Table e2m1_table(float scale) {
  HWY_ALIGN static constexpr float kValues[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,
                                                  4.0f,  6.0f,  -0.0f, -0.5f, -1.0f, -1.5f,
                                                  -2.0f, -3.0f, -4.0f, -6.0f};
  const FloatTag tag;
  return {hn::Mul(hn::Load(tag, kValues), hn::Set(tag, scale)), hn::Set(tag, scale)};
}

// Scaled values of the codes in the low four bits: one look-up where a vector
// holds all sixteen, a look-up and the sign where it holds eight.
HWY_INLINE FloatVector e2m1_scaled(BitsVector code, const E2m1Table& table) {
  const FloatTag tag;
  const BitsTag bits_tag;
  if constexpr (kVectorLanes == 16) {
    const BitsVector index = hn::And(code, hn::Set(bits_tag, 15u));
    return hn::TableLookupLanes(table.values, hn::IndicesFromVec(tag, index));
  } else if constexpr (kVectorLanes == 8) {
    const BitsVector index = hn::And(code, hn::Set(bits_tag, 7u));
    const BitsVector sign = hn::ShiftLeft<28>(hn::And(code, hn::Set(bits_tag, 8u)));
    return hn::Xor(hn::TableLookupLanes(table.values, hn::IndicesFromVec(tag, index)),
                   hn::BitCast(tag, sign));
  } else {
    return hn::Mul(e2m1_vector(code), table.scale);
  }
}

// ---- sixteen lanes ------------------------------------------------------------------------------

struct Lanes {
  FloatVector part[kParts];
};

HWY_INLINE Lanes broadcast(float value) {
  Lanes lanes;
  PEREGRINE_UNROLL
  for (size_t p = 0; p < kParts; ++p) lanes.part[p] = hn::Set(FloatTag(), value);
  return lanes;
}

HWY_INLINE Lanes load(const float* values) {
  Lanes lanes;
  PEREGRINE_UNROLL
  for (size_t p = 0; p < kParts; ++p) {
    lanes.part[p] = hn::LoadU(FloatTag(), values + p * kVectorLanes);
  }
  return lanes;
}

HWY_INLINE void store(const Lanes& lanes, float* values) {
  PEREGRINE_UNROLL
  for (size_t p = 0; p < kParts; ++p) {
    hn::StoreU(lanes.part[p], FloatTag(), values + p * kVectorLanes);
  }
}

// sum += a * b, fused.
HWY_INLINE void multiply_add(const Lanes& a, const Lanes& b, Lanes& sum) {
  PEREGRINE_UNROLL
  for (size_t p = 0; p < kParts; ++p) sum.part[p] = hn::MulAdd(a.part[p], b.part[p], sum.part[p]);
}

HWY_INLINE Lanes multiply(const Lanes& a, const Lanes& b) {
  Lanes lanes;
  PEREGRINE_UNROLL
  for (size_t p = 0; p < kParts; ++p) lanes.part[p] = hn::Mul(a.part[p], b.part[p]);
  return lanes;
}

HWY_INLINE Lanes add(const Lanes& a, const Lanes& b) {
  Lanes lanes;
  PEREGRINE_UNROLL
  for (size_t p = 0; p < kParts; ++p) lanes.part[p] = hn::Add(a.part[p], b.part[p]);
  return lanes;
}

HWY_INLINE Lanes maximum(const Lanes& a, const Lanes& b) {
  Lanes lanes;
  PEREGRINE_UNROLL
  for (size_t p = 0; p < kParts; ++p) lanes.part[p] = hn::Max(a.part[p], b.part[p]);
  return lanes;
}

HWY_INLINE Lanes rounded(const Lanes& a) {
  Lanes lanes;
  PEREGRINE_UNROLL
  for (size_t p = 0; p < kParts; ++p) lanes.part[p] = round_vector(a.part[p]);
  return lanes;
}

HWY_INLINE Lanes rounded_if(bool round, const Lanes& a) { return round ? rounded(a) : a; }

// Values of sixteen e4m3 codes times a scale of at most 2^119.
HWY_INLINE Lanes e4m3_scaled(const uint8_t* codes, float scale) {
  const FloatVector factor = hn::Set(FloatTag(), scale * 256.0f);
  Lanes lanes;
  PEREGRINE_UNROLL
  for (size_t p = 0; p < kParts; ++p) {
    lanes.part[p] = hn::Mul(e4m3_over_256(codes + p * kVectorLanes), factor);
  }
  return lanes;
}

// The fixed tree: lane i + lane i + 8, then 4, 2, 1.
HWY_INLINE float sum_lanes(const Lanes& lanes) {
  HWY_ALIGN float values[16];
  store(lanes, values);
  for (size_t half = 8; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) values[i] += values[i + half];
  }
  return values[0];
}

HWY_INLINE float max_lanes(const Lanes& lanes) {
  FloatVector best = lanes.part[0];
  for (size_t p = 1; p < kParts; ++p) best = hn::Max(best, lanes.part[p]);
  return hn::GetLane(hn::MaxOfLanes(FloatTag(), best));
}

}  // namespace peregrine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
