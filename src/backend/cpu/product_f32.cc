// Matrix products with weights widened to floats, for every Highway target.
//
// Few input rows: weights are widened in registers, four (or two) weight rows
// at a time. Many: the tile is widened once into a panel that stays in the
// second-level cache, and the same loop runs over the panel. Both add the same
// products in the same order (kernels.h).
#include "backend/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/product_f32.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "backend/cpu/kernels.h"
#include "backend/cpu/lanes-inl.h"
#include "formats/bf16.h"
#include "formats/e8m0.h"

HWY_BEFORE_NAMESPACE();
namespace peregrine::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kBlock = 32;
// Rows of a panel: with 15360 inputs, the longest of the released model, one
// megabyte.
constexpr int64_t kPanelRows = 16;
// Above this many input rows the panel pays for its stores.
constexpr int kDirectRows = 4;
// Weight rows and input rows of the register tile: as many as the registers
// hold.
constexpr int kRegisterRows = kParts == 1 ? 4 : 2;
constexpr int kRegisterInputs = kParts == 1 ? 4 : (kParts == 2 ? 2 : 1);

HWY_INLINE int64_t padded(int64_t n) { return (n + kBlock - 1) / kBlock * kBlock; }

// ---- one block of 32 weights as two times sixteen lanes, in the order of
// prepared inputs --------

HWY_INLINE void load_tail(const void* row, int64_t element_bytes, int64_t block, int64_t n,
                          void* buffer) {
  std::memcpy(buffer, static_cast<const std::byte*>(row) + block * kBlock * element_bytes,
              static_cast<size_t>((n - block * kBlock) * element_bytes));
}

struct F32Weight {
  static HWY_INLINE Lanes load_half(const Weight& w, int64_t o, int64_t block, int half) {
    const float* row = static_cast<const float*>(w.data) + o * w.in;
    if ((block + 1) * kBlock <= w.in) [[likely]] {
      return load(row + block * kBlock + half * 16);
    }
    HWY_ALIGN float tail[kBlock] = {};
    load_tail(row, sizeof(float), block, w.in, tail);
    return load(tail + half * 16);
  }
};

struct Bf16Weight {
  static HWY_INLINE Lanes widen(const uint16_t* bits) {
    const hn::Rebind<uint16_t, BitsTag> half_tag;
    Lanes lanes;
    PEREGRINE_UNROLL
    for (size_t p = 0; p < kParts; ++p) {
      const BitsVector wide =
          hn::PromoteTo(BitsTag(), hn::LoadU(half_tag, bits + p * kVectorLanes));
      lanes.part[p] = hn::BitCast(FloatTag(), hn::ShiftLeft<16>(wide));
    }
    return lanes;
  }
  static HWY_INLINE Lanes load_half(const Weight& w, int64_t o, int64_t block, int half) {
    const uint16_t* row = static_cast<const uint16_t*>(w.data) + o * w.in;
    if ((block + 1) * kBlock <= w.in) [[likely]] {
      return widen(row + block * kBlock + half * 16);
    }
    HWY_ALIGN uint16_t tail[kBlock] = {};
    load_tail(row, sizeof(uint16_t), block, w.in, tail);
    return widen(tail + half * 16);
  }
};

struct F8Weight {
  static HWY_INLINE Lanes load_half(const Weight& w, int64_t o, int64_t block, int half) {
    const uint8_t* codes = static_cast<const uint8_t*>(w.data) + o * w.in + block * kBlock;
    return e4m3_scaled(codes + half * 16,
                       e8m0_value(w.scale[o / kTileOut * (w.in / kBlock) + block]));
  }
};

// Even elements of the block first, then odd ones.
struct F4Weight {
  static HWY_INLINE Lanes load_half(const Weight& w, int64_t o, int64_t block, int half) {
    const uint8_t* codes = static_cast<const uint8_t*>(w.data) + (o * w.in + block * kBlock) / 2;
    const E2m1Table table = e2m1_table(e8m0_value(w.scale[o * (w.in / kBlock) + block]));
    Lanes lanes;
    PEREGRINE_UNROLL
    for (size_t p = 0; p < kParts; ++p) {
      const BitsVector bytes = load_bytes(codes + p * kVectorLanes);
      lanes.part[p] = e2m1_scaled(half == 0 ? bytes : hn::ShiftRight<4>(bytes), table);
    }
    return lanes;
  }
};

// ---- the register tile --------------------------------------------------------------------------

// results[m][n] = weight row m . input n.
template <int kM, int kN, typename Source>
HWY_INLINE void multiply_tile(const Source& source, int64_t blocks, const float* const* inputs,
                              float results[kM][kN]) {
  Lanes sums[kM][kN];
  PEREGRINE_UNROLL
  for (int m = 0; m < kM; ++m) {
    PEREGRINE_UNROLL
    for (int n = 0; n < kN; ++n) sums[m][n] = broadcast(0.0f);
  }
  for (int64_t block = 0; block < blocks; ++block) {
    PEREGRINE_UNROLL
    for (int half = 0; half < 2; ++half) {
      Lanes weights[kM];
      PEREGRINE_UNROLL
      for (int m = 0; m < kM; ++m) weights[m] = source.load_half(m, block, half);
      PEREGRINE_UNROLL
      for (int n = 0; n < kN; ++n) {
        const Lanes input = load(inputs[n] + block * kBlock + half * 16);
        PEREGRINE_UNROLL
        for (int m = 0; m < kM; ++m) multiply_add(weights[m], input, sums[m][n]);
      }
    }
  }
  PEREGRINE_UNROLL
  for (int m = 0; m < kM; ++m) {
    PEREGRINE_UNROLL
    for (int n = 0; n < kN; ++n) results[m][n] = sum_lanes(sums[m][n]);
  }
}

template <typename Format>
struct StoredRows {
  const Weight& weight;
  int64_t first;
  HWY_INLINE Lanes load_half(int m, int64_t block, int half) const {
    return Format::load_half(weight, first + m, block, half);
  }
};

struct PanelRows {
  const float* first;
  int64_t stride;
  HWY_INLINE Lanes load_half(int m, int64_t block, int half) const {
    return load(first + m * stride + block * kBlock + half * 16);
  }
};

template <int kM, int kN, typename Source>
HWY_INLINE void multiply_and_store(const ProductArgs& args, const Source& source, int64_t o,
                                   int row) {
  const float* inputs[kN];
  for (int n = 0; n < kN; ++n) {
    inputs[n] = reinterpret_cast<const float*>(args.inputs[row + n]);
  }
  float results[kM][kN];
  multiply_tile<kM, kN>(source, padded(args.weight->in) / kBlock, inputs, results);
  for (int n = 0; n < kN; ++n) {
    for (int m = 0; m < kM; ++m) {
      args.outputs[row + n][o + m] = args.round ? round_bf16(results[m][n]) : results[m][n];
    }
  }
}

// All inputs against kM weight rows.
template <int kM, typename Source>
HWY_INLINE void multiply_inputs(const ProductArgs& args, const Source& source, int64_t o) {
  int row = 0;
  for (; row + kRegisterInputs <= args.rows; row += kRegisterInputs) {
    multiply_and_store<kM, kRegisterInputs>(args, source, o, row);
  }
  if constexpr (kRegisterInputs == 4) {
    if (args.rows - row == 3) return multiply_and_store<kM, 3>(args, source, o, row);
    if (args.rows - row == 2) return multiply_and_store<kM, 2>(args, source, o, row);
  }
  if (row < args.rows) multiply_and_store<kM, 1>(args, source, o, row);
}

template <typename Format>
void multiply_direct(const ProductArgs& args) {
  int64_t o = args.begin;
  for (; o + kRegisterRows <= args.end; o += kRegisterRows) {
    multiply_inputs<kRegisterRows>(args, StoredRows<Format>{*args.weight, o}, o);
  }
  for (; o < args.end; ++o) multiply_inputs<1>(args, StoredRows<Format>{*args.weight, o}, o);
}

// Weight rows begin .. begin + count - 1, small enough to stay in the cache, against all inputs.
// Inputs outside: a group of them stays near while the weight rows pass.
template <typename RowsAt>
void multiply_group(const ProductArgs& args, int64_t begin, int64_t count, const RowsAt& rows_at) {
  for (int row = 0; row < args.rows; row += kRegisterInputs) {
    ProductArgs part = args;
    part.inputs = args.inputs + row;
    part.outputs = args.outputs + row;
    part.rows = std::min(kRegisterInputs, args.rows - row);
    int64_t m = 0;
    for (; m + kRegisterRows <= count; m += kRegisterRows) {
      multiply_inputs<kRegisterRows>(part, rows_at(m), begin + m);
    }
    for (; m < count; ++m) multiply_inputs<1>(part, rows_at(m), begin + m);
  }
}

template <typename Format>
struct StoredRowsAt {
  const Weight& weight;
  int64_t first;
  HWY_INLINE StoredRows<Format> operator()(int64_t m) const { return {weight, first + m}; }
};

struct PanelRowsAt {
  const float* panel;
  int64_t stride;
  HWY_INLINE PanelRows operator()(int64_t m) const { return {panel + m * stride, stride}; }
};

template <typename Format>
void multiply_panel(const ProductArgs& args) {
  const int64_t stride = padded(args.weight->in);
  float* panel = reinterpret_cast<float*>(args.scratch);
  for (int64_t begin = args.begin; begin < args.end; begin += kPanelRows) {
    const int64_t count = std::min(kPanelRows, args.end - begin);
    if constexpr (std::is_same_v<Format, F32Weight>) {  // nothing to widen
      multiply_group(args, begin, count, StoredRowsAt<Format>{*args.weight, begin});
      continue;
    }
    for (int64_t m = 0; m < count; ++m) {
      for (int64_t block = 0; block < stride / kBlock; ++block) {
        float* out = panel + m * stride + block * kBlock;
        store(Format::load_half(*args.weight, begin + m, block, 0), out);
        store(Format::load_half(*args.weight, begin + m, block, 1), out + 16);
      }
    }
    multiply_group(args, begin, count, PanelRowsAt{panel, stride});
  }
}

template <typename Format>
void multiply_format(const ProductArgs& args) {
  if (args.rows <= kDirectRows) {
    multiply_direct<Format>(args);
  } else {
    multiply_panel<Format>(args);
  }
}

void multiply_any(const ProductArgs& args) {
  switch (args.weight->format) {
    case WeightFormat::kF32:
      return multiply_format<F32Weight>(args);
    case WeightFormat::kBF16:
      return multiply_format<Bf16Weight>(args);
    case WeightFormat::kF8:
      return multiply_format<F8Weight>(args);
    case WeightFormat::kF4:
      return multiply_format<F4Weight>(args);
  }
}

// ---- inputs -------------------------------------------------------------------------------------

// The value nearest to x in e4m3, ties to even; |x| is at most 448.
HWY_INLINE FloatVector nearest_e4m3(FloatVector x) {
  const FloatTag tag;
  const BitsTag bits_tag;
  const FloatVector magnitude = hn::Abs(x);
  const BitsVector bits = hn::BitCast(bits_tag, magnitude);
  const BitsVector odd = hn::And(hn::ShiftRight<20>(bits), hn::Set(bits_tag, 1u));
  const BitsVector sum = hn::Add(bits, hn::Add(odd, hn::Set(bits_tag, 0x7FFFFu)));
  const FloatVector normal = hn::BitCast(tag, hn::And(sum, hn::Set(bits_tag, 0xFFF00000u)));
  // Adding 2^14 leaves multiples of 2^-9, the subnormal step.
  const FloatVector step = hn::Set(tag, 16384.0f);
  const FloatVector subnormal = hn::Sub(hn::Add(magnitude, step), step);
  const FloatVector value =
      hn::IfThenElse(hn::Lt(magnitude, hn::Set(tag, 0.015625f)), subnormal, normal);
  return hn::CopySign(value, x);
}

// What act_quant's codes of one block mean.
HWY_INLINE void quantise_block(Lanes block[2]) {
  constexpr float kMinimum = 1e-4f;
  Lanes magnitude[2];
  PEREGRINE_UNROLL
  for (size_t p = 0; p < kParts; ++p) {
    magnitude[0].part[p] = hn::Abs(block[0].part[p]);
    magnitude[1].part[p] = hn::Abs(block[1].part[p]);
  }
  const float amax = std::max(kMinimum, max_lanes(maximum(magnitude[0], magnitude[1])));
  const uint8_t byte = e8m0_ceil_scale(amax, kInverse448);
  const FloatTag tag;
  const FloatVector scale = hn::Set(tag, e8m0_value(byte));
  // The reciprocal of a power of two is exact; byte lies between 105 and 246
  // for finite inputs.
  const FloatVector inverse = hn::Set(tag, e8m0_value(static_cast<uint8_t>(254 - byte)));
  const FloatVector limit = hn::Set(tag, 448.0f);
  PEREGRINE_UNROLL
  for (size_t i = 0; i < 2 * kParts; ++i) {
    FloatVector& part = block[i / kParts].part[i % kParts];
    const FloatVector x = hn::Mul(part, inverse);
    part = hn::Mul(nearest_e4m3(hn::Min(hn::Max(x, hn::Neg(limit)), limit)), scale);
  }
}

void prepare_row(WeightFormat format, bool quantise, const float* values, int64_t n,
                 std::byte* row) {
  float* out = reinterpret_cast<float*>(row);
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    HWY_ALIGN float buffer[kBlock] = {};
    std::memcpy(buffer, values + begin,
                static_cast<size_t>(std::min(kBlock, n - begin)) * sizeof(float));
    if (quantise) {
      Lanes block[2] = {load(buffer), load(buffer + 16)};
      quantise_block(block);
      store(block[0], buffer);
      store(block[1], buffer + 16);
    }
    for (int i = 0; i < kBlock; ++i) {
      const int from = format == WeightFormat::kF4 ? (i < 16 ? 2 * i : 2 * i - 31) : i;
      out[begin + i] = buffer[from];
    }
  }
}

size_t row_bytes(int64_t n) { return static_cast<size_t>(padded(n)) * sizeof(float); }
size_t scratch_bytes(int64_t n) { return static_cast<size_t>(kPanelRows) * row_bytes(n); }

ProductKernel make_kernel() {
  return {.row_bytes = &row_bytes,
          .scratch_bytes = &scratch_bytes,
          .prepare = &prepare_row,
          .multiply = &multiply_any};
}

}  // namespace
}  // namespace peregrine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace peregrine::cpu {

HWY_EXPORT(make_kernel);

ProductKernel f32_product_kernel(int64_t target) {
  return HWY_DISPATCH_TABLE(make_kernel)[target_index(target)]();
}

}  // namespace peregrine::cpu
#endif
