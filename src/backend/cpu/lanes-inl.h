// Sixteen float lanes on every target, as one vector or several: the unit in which kernels sum, so
// that results do not depend on vector width.
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

// ---- one vector -------------------------------------------------------------------------------

// To bf16, to nearest even; inputs are not NaN.
HWY_INLINE FloatVector round_vector(FloatVector x) {
  const BitsTag bits_tag;
  const BitsVector bits = hn::BitCast(bits_tag, x);
  const BitsVector odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(bits_tag, 1u));
  const BitsVector rounded = hn::Add(bits, hn::Add(odd, hn::Set(bits_tag, 0x7FFFu)));
  return hn::BitCast(FloatTag(), hn::And(rounded, hn::Set(bits_tag, 0xFFFF0000u)));
}

// Values of e4m3 codes. Normal codes only change the exponent's bias; a subnormal one, read as a
// normal number of exponent 0, would be 2^-7 (1 + m/8) where m/8 * 2^-6 is meant.
HWY_INLINE FloatVector e4m3_vector(BitsVector code) {
  const BitsTag bits_tag;
  const FloatTag tag;
  const BitsVector magnitude = hn::And(code, hn::Set(bits_tag, 0x7Fu));
  const BitsVector sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(bits_tag, 0x80u)));
  const BitsVector normal_bits =
      hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(bits_tag, 120u << 23));
  const FloatVector normal = hn::BitCast(tag, normal_bits);
  const FloatVector subnormal = hn::Sub(hn::Add(normal, normal), hn::Set(tag, 0.015625f));
  const auto is_subnormal =
      hn::RebindMask(tag, hn::Lt(hn::BitCast(hn::RebindToSigned<BitsTag>(), magnitude),
                                 hn::Set(hn::RebindToSigned<BitsTag>(), 8)));
  const auto is_nan = hn::RebindMask(tag, hn::Eq(magnitude, hn::Set(bits_tag, 0x7Fu)));
  FloatVector value = hn::IfThenElse(is_subnormal, subnormal, normal);
  value = hn::IfThenElse(is_nan, hn::BitCast(tag, hn::Set(bits_tag, 0x7FC00000u)), value);
  return hn::Or(value, hn::BitCast(tag, sign));
}

// Values of e2m1 codes in the low four bits; the same correction for the codes 0 and 1.
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

HWY_INLINE Lanes e4m3_lanes(const uint8_t* codes) {
  Lanes lanes;
  PEREGRINE_UNROLL
  for (size_t p = 0; p < kParts; ++p) {
    lanes.part[p] = e4m3_vector(load_bytes(codes + p * kVectorLanes));
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
