// Matrix products with weights widened to bf16, for x86 with AVX-512 BF16 and VBMI.
//
// Highway 1.0 has no such target, so this file is written with intrinsics and compiled for it
// whatever the rest is compiled for; bf16_product_kernel() checks the CPU before handing it out.
// The widening of each format is described where it happens; inputs are laid out to match
// (prepare_row). Order of sums: kernels.h.
#include "backend/cpu/kernels.h"

#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the "undefined" operands inside its own intrinsics for uninitialised variables.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "formats/bf16.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"

#include <hwy/base.h>
#define PEREGRINE_UNROLL _Pragma("GCC unroll 16")

namespace peregrine::cpu {
namespace bf16 {
namespace {

struct alignas(64) Tables {
  uint16_t fp4[32];          // e2m1 values, twice
  uint8_t fp8_high[128];     // upper bytes of e4m3 magnitudes
  uint8_t fp8_low[128];      // lower bytes
  uint16_t nibble[32];       // shifts: 0 for the even elements, 4 for the odd
  uint16_t even_odd[32];     // input order of FP4
  uint16_t unpack_low[32];   // input order of FP8: what unpacking bytes of 128-bit lanes gives,
  uint16_t unpack_high[32];  // from 64 inputs
};

Tables make_tables() {
  // e2m1 magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6 as bf16.
  constexpr uint16_t kMagnitudes[8] = {0x0000, 0x3F00, 0x3F80, 0x3FC0,
                                       0x4000, 0x4040, 0x4080, 0x40C0};
  Tables tables{};
  for (int i = 0; i < 32; ++i) {
    tables.fp4[i] = static_cast<uint16_t>(kMagnitudes[i % 8] | ((i & 8) != 0 ? 0x8000 : 0));
    tables.nibble[i] = i < 16 ? 0 : 4;
    tables.even_odd[i] = static_cast<uint16_t>(i < 16 ? 2 * i : 2 * (i - 16) + 1);
    tables.unpack_low[i] = static_cast<uint16_t>(i / 8 * 16 + i % 8);
    tables.unpack_high[i] = static_cast<uint16_t>(i / 8 * 16 + 8 + i % 8);
  }
  for (int code = 0; code < 128; ++code) {
    const uint16_t bits = bf16_bits(e4m3_value(static_cast<uint8_t>(code)));
    tables.fp8_high[code] = static_cast<uint8_t>(bits >> 8);
    tables.fp8_low[code] = static_cast<uint8_t>(bits & 0xFF);
  }
  return tables;
}

const Tables kTables = make_tables();

}  // namespace
}  // namespace bf16
}  // namespace peregrine::cpu

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512bf16,avx2,fma,f16c,bmi2")
namespace peregrine::cpu {
namespace bf16 {
namespace {

#define PEREGRINE_INLINE inline __attribute__((always_inline))

constexpr int64_t kBlock = 32;
constexpr int64_t kPad = 64;          // inputs are padded to whole FP8 loads
constexpr int kDirectRows = 8;        // above it weights are widened into a panel
constexpr int kPanelInputs = 6;       // input rows of the panel loop's register tile
constexpr int kRegisterRows = 4;      // weight rows of it
constexpr int64_t kChunkBlocks = 32;  // blocks after which the panel loop turns to the next rows

PEREGRINE_INLINE int64_t padded(int64_t n) { return (n + kPad - 1) / kPad * kPad; }

PEREGRINE_INLINE __m512 dot(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

// The fixed tree: lane i + lane i + 8, then 4, 2, 1.
PEREGRINE_INLINE float sum_lanes(__m512 lanes) {
  const __m256 eight =
      _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// The exponent bits that multiply a bf16 number by the scale of an UE8M0 byte.
PEREGRINE_INLINE uint16_t scale_bits(uint8_t byte) {
  return static_cast<uint16_t>((byte - 127) * 128);
}

// Multiplies normal numbers by powers of two; zeros and NaNs stay.
PEREGRINE_INLINE __m512i scale_words(__m512i x, __m512i exponents) {
  const __m512i magnitude = _mm512_and_si512(x, _mm512_set1_epi16(0x7FFF));
  const __m512i above_zero = _mm512_sub_epi16(magnitude, _mm512_set1_epi16(1));
  const __mmask32 finite = _mm512_cmplt_epu16_mask(above_zero, _mm512_set1_epi16(0x7F80 - 1));
  return _mm512_mask_add_epi16(x, finite, x, exponents);
}

// Weight rows follow one another in memory and are read a register tile at a time; the next tile's
// lines are asked for while this one is multiplied, because a row alone is too short a stream for
// the hardware to run ahead.
PEREGRINE_INLINE void prefetch(const void* at) {
  _mm_prefetch(static_cast<const char*>(at), _MM_HINT_T1);
}

// ---- one step of a weight row -------------------------------------------------------------------

// bf16, as stored. One vector a step.
struct Bf16Rows {
  static constexpr int kVectors = 1;
  const uint16_t* first;
  int64_t in;

  PEREGRINE_INLINE void load(int m, int64_t step, __m512i out[1]) const {
    const uint16_t* at = first + m * in + step * kBlock;
    prefetch(at + kRegisterRows * in);
    const int64_t left = in - step * kBlock;
    if (left >= kBlock) [[likely]] {
      out[0] = _mm512_loadu_si512(at);
    } else {
      out[0] = _mm512_maskz_loadu_epi16((__mmask32{1} << left) - 1, at);
    }
  }
};

// e2m1: 16 bytes twice as words, the second time shifted by a nibble, select among 32 words; the
// upper half of the table repeats the lower, so that the next nibble's lowest bit does not matter.
// The scale is added to the table's exponents. One vector a step, even elements, then odd ones.
struct Fp4Rows {
  static constexpr int kVectors = 1;
  const uint8_t* first;
  const uint16_t* scales;  // exponents, scale_stride a row
  int64_t row_bytes;
  int64_t scale_stride;
  __m512i table;
  __m512i shifts;

  PEREGRINE_INLINE void load(int m, int64_t step, __m512i out[1]) const {
    const uint8_t* at = first + m * row_bytes + step * (kBlock / 2);
    if (step % 4 == 0) prefetch(at + kRegisterRows * row_bytes);
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    const __m512i words = _mm512_cvtepu8_epi16(_mm256_broadcastsi128_si256(bytes));
    const __m512i index = _mm512_srlv_epi16(words, shifts);
    const __mmask32 not_zero = 0xFEFEFEFEu;  // codes 0 and 8 stay zero
    const __m512i scaled = _mm512_mask_add_epi16(
        table, not_zero, table,
        _mm512_set1_epi16(static_cast<int16_t>(scales[m * scale_stride + step])));
    out[0] = _mm512_permutexvar_epi16(index, scaled);
  }
};

// e4m3: the upper and the lower byte of every bf16 come from two tables of 128 bytes, the sign from
// the code; unpacking joins them. Two vectors a step of 64 weights, scales left out.
struct Fp8Rows {
  static constexpr int kVectors = 2;
  const uint8_t* first;
  int64_t in;
  __m512i high[2];
  __m512i low[2];

  PEREGRINE_INLINE void load(int m, int64_t step, __m512i out[2]) const {
    const uint8_t* at = first + m * in + step * 64;
    prefetch(at + kRegisterRows * in);
    __m512i codes;
    if (in - step * 64 >= 64) [[likely]] {
      codes = _mm512_loadu_si512(at);
    } else {
      codes = _mm512_maskz_loadu_epi8(0xFFFFFFFFull, at);
    }
    const __m512i low_bytes = _mm512_permutex2var_epi8(low[0], codes, low[1]);
    const __m512i high_bytes = _mm512_permutex2var_epi8(high[0], codes, high[1]);
    // high_bytes | (codes & 0x80)
    const __m512i signed_bytes =
        _mm512_ternarylogic_epi32(high_bytes, codes, _mm512_set1_epi8(-128), 0xF8);
    out[0] = _mm512_unpacklo_epi8(low_bytes, signed_bytes);
    out[1] = _mm512_unpackhi_epi8(low_bytes, signed_bytes);
  }
};

struct PanelRows {
  static constexpr int kVectors = 1;
  const uint16_t* first;
  int64_t stride;

  PEREGRINE_INLINE void load(int m, int64_t step, __m512i out[1]) const {
    out[0] = _mm512_load_si512(first + m * stride + step * kBlock);
  }
};

// ---- the register tile --------------------------------------------------------------------------

template <int kM, int kN, typename Rows>
PEREGRINE_INLINE void add_steps(const Rows& rows, int64_t begin, int64_t end,
                                const uint16_t* const* inputs, __m512 sums[kM][kN]) {
  const uint16_t* in[kN];
  PEREGRINE_UNROLL
  for (int n = 0; n < kN; ++n) in[n] = inputs[n];
  for (int64_t step = begin; step < end; ++step) {
    __m512i weights[kM][Rows::kVectors];
    PEREGRINE_UNROLL
    for (int m = 0; m < kM; ++m) rows.load(m, step, weights[m]);
    PEREGRINE_UNROLL
    for (int v = 0; v < Rows::kVectors; ++v) {
      PEREGRINE_UNROLL
      for (int n = 0; n < kN; ++n) {
        const __m512i input = _mm512_load_si512(in[n] + (step * Rows::kVectors + v) * kBlock);
        PEREGRINE_UNROLL
        for (int m = 0; m < kM; ++m) sums[m][n] = dot(sums[m][n], weights[m][v], input);
      }
    }
  }
}

template <int kM, int kN>
PEREGRINE_INLINE void store_sums(const __m512 sums[kM][kN], const ProductArgs& args, int64_t o,
                                 int row) {
  PEREGRINE_UNROLL
  for (int n = 0; n < kN; ++n) {
    PEREGRINE_UNROLL
    for (int m = 0; m < kM; ++m) {
      const float sum = sum_lanes(sums[m][n]);
      args.outputs[row + n][o + m] = args.round ? round_bf16(sum) : sum;
    }
  }
}

// ---- few input rows: widen in registers ---------------------------------------------------------

template <int kM, int kN, typename Rows>
PEREGRINE_INLINE void multiply_rows(const ProductArgs& args, const Rows& rows, int64_t o,
                                    int64_t steps, const uint16_t* const* inputs) {
  __m512 sums[kM][kN];
  PEREGRINE_UNROLL
  for (int m = 0; m < kM; ++m) {
    PEREGRINE_UNROLL
    for (int n = 0; n < kN; ++n) sums[m][n] = _mm512_setzero_ps();
  }
  add_steps<kM, kN>(rows, 0, steps, inputs, sums);
  store_sums<kM, kN>(sums, args, o, 0);
}

// `rows_at(o)` gives the loader of weight row o and the ones after it.
template <int kN, typename RowsAt>
void multiply_direct(const ProductArgs& args, const RowsAt& rows_at, int64_t steps,
                     const uint16_t* const* inputs) {
  constexpr int kM = kN <= 6 ? 4 : 2;
  int64_t o = args.begin;
  for (; o + kM <= args.end; o += kM) multiply_rows<kM, kN>(args, rows_at(o), o, steps, inputs);
  for (; o < args.end; ++o) multiply_rows<1, kN>(args, rows_at(o), o, steps, inputs);
}

template <typename RowsAt>
void multiply_direct_rows(const ProductArgs& args, const RowsAt& rows_at, int64_t steps,
                          const uint16_t* const* inputs) {
  switch (args.rows) {
    case 1:
      return multiply_direct<1>(args, rows_at, steps, inputs);
    case 2:
      return multiply_direct<2>(args, rows_at, steps, inputs);
    case 3:
      return multiply_direct<3>(args, rows_at, steps, inputs);
    case 4:
      return multiply_direct<4>(args, rows_at, steps, inputs);
    case 5:
      return multiply_direct<5>(args, rows_at, steps, inputs);
    case 6:
      return multiply_direct<6>(args, rows_at, steps, inputs);
    case 7:
      return multiply_direct<7>(args, rows_at, steps, inputs);
    default:
      return multiply_direct<8>(args, rows_at, steps, inputs);
  }
}

// ---- the formats' loaders -----------------------------------------------------------------------

struct Bf16At {
  const Weight& weight;
  PEREGRINE_INLINE Bf16Rows operator()(int64_t o) const {
    return {static_cast<const uint16_t*>(weight.data) + o * weight.in, weight.in};
  }
};

struct Fp4At {
  const Weight& weight;
  const uint16_t* scales;  // of row `begin`
  int64_t begin;
  PEREGRINE_INLINE Fp4Rows operator()(int64_t o) const {
    const int64_t blocks = weight.in / kBlock;
    return {static_cast<const uint8_t*>(weight.data) + o * weight.in / 2,
            scales + (o - begin) * blocks,
            weight.in / 2,
            blocks,
            _mm512_load_si512(kTables.fp4),
            _mm512_load_si512(kTables.nibble)};
  }
};

struct Fp8At {
  const Weight& weight;
  PEREGRINE_INLINE Fp8Rows operator()(int64_t o) const {
    return {static_cast<const uint8_t*>(weight.data) + o * weight.in,
            weight.in,
            {_mm512_load_si512(kTables.fp8_high), _mm512_load_si512(kTables.fp8_high + 64)},
            {_mm512_load_si512(kTables.fp8_low), _mm512_load_si512(kTables.fp8_low + 64)}};
  }
};

// Exponents of all FP4 scales of the piece's rows, with up to 31 words beyond them.
void expand_fp4_scales(const ProductArgs& args, uint16_t* out) {
  const int64_t blocks = args.weight->in / kBlock;
  const uint8_t* bytes = args.weight->scale + args.begin * blocks;
  const int64_t count = (args.end - args.begin) * blocks;
  const __m512i bias = _mm512_set1_epi16(127);
  for (int64_t i = 0; i < count; i += 32) {
    const __mmask32 mask = count - i >= 32 ? 0xFFFFFFFFu : (__mmask32{1} << (count - i)) - 1;
    const __m512i words = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(mask, bytes + i));
    _mm512_store_si512(out + i, _mm512_slli_epi16(_mm512_sub_epi16(words, bias), 7));
  }
}

// Exponents in word order of the FP8 steps: a vector's words 0..15 belong to the first block of 32
// inputs, the others to the second. A missing second block gets 0.
PEREGRINE_INLINE __m512i fp8_exponents(const uint8_t* scales, int64_t step, int64_t blocks) {
  const int64_t block = 2 * step;
  const __m256i first = _mm256_set1_epi16(static_cast<int16_t>(scale_bits(scales[block])));
  const uint16_t second_bits = block + 1 < blocks ? scale_bits(scales[block + 1]) : uint16_t{0};
  return _mm512_inserti64x4(_mm512_castsi256_si512(first),
                            _mm256_set1_epi16(static_cast<int16_t>(second_bits)), 1);
}

// ---- many input rows: widen into a panel --------------------------------------------------------

// Layout of the scratch memory of one piece. The panel part also holds expanded FP4 scales or
// scaled FP8 inputs, of which a direct product needs one at a time.
struct Scratch {
  uint16_t* panel;   // [kTileOut, padded(in)]
  uint16_t* scales;  // [kTileOut, in / 32]
  float* sums;       // [kTileOut / kRegisterRows][kRegisterRows][kPanelInputs][16]
};

constexpr size_t kSumsBytes = kTileOut * kPanelInputs * 64;

size_t panel_bytes(int64_t n) {
  return static_cast<size_t>(kTileOut * padded(n)) * sizeof(uint16_t);
}
size_t scale_area_bytes(int64_t n) {
  return static_cast<size_t>(kTileOut * padded(n)) / kBlock * sizeof(uint16_t);
}
size_t scratch_bytes(int64_t n) { return panel_bytes(n) + scale_area_bytes(n) + kSumsBytes; }

Scratch split_scratch(const ProductArgs& args) {
  const int64_t n = args.weight->in;
  return {reinterpret_cast<uint16_t*>(args.scratch),
          reinterpret_cast<uint16_t*>(args.scratch + panel_bytes(n)),
          reinterpret_cast<float*>(args.scratch + panel_bytes(n) + scale_area_bytes(n))};
}

template <typename RowsAt>
void widen(const ProductArgs& args, const RowsAt& rows_at, int64_t steps, uint16_t* panel) {
  const int64_t stride = padded(args.weight->in);
  for (int64_t o = args.begin; o < args.end; ++o) {
    const auto rows = rows_at(o);
    uint16_t* out = panel + (o - args.begin) * stride;
    for (int64_t step = 0; step < steps; ++step) {
      constexpr int kVectors = std::remove_reference_t<decltype(rows)>::kVectors;
      __m512i weights[kVectors];
      rows.load(0, step, weights);
      for (int v = 0; v < kVectors; ++v) {
        _mm512_store_si512(out + (step * kVectors + v) * kBlock, weights[v]);
      }
    }
  }
}

// FP8 with scales: two vectors a step share the exponents.
void widen_fp8(const ProductArgs& args, int64_t steps, uint16_t* panel) {
  const int64_t stride = padded(args.weight->in);
  const int64_t blocks = args.weight->in / kBlock;
  const uint8_t* scales = args.weight->scale + args.begin / kTileOut * blocks;
  const Fp8At rows_at{*args.weight};
  for (int64_t o = args.begin; o < args.end; ++o) {
    const Fp8Rows rows = rows_at(o);
    uint16_t* out = panel + (o - args.begin) * stride;
    for (int64_t step = 0; step < steps; ++step) {
      __m512i weights[2];
      rows.load(0, step, weights);
      const __m512i exponents = fp8_exponents(scales, step, blocks);
      _mm512_store_si512(out + step * 64, scale_words(weights[0], exponents));
      _mm512_store_si512(out + step * 64 + kBlock, scale_words(weights[1], exponents));
    }
  }
}

// One chunk of steps for kM weight rows and kN inputs; sums wait in memory between chunks.
template <int kM, int kN>
PEREGRINE_INLINE void panel_chunk(const PanelRows& rows, int64_t begin, int64_t end,
                                  const uint16_t* const* inputs, float* waiting) {
  __m512 sums[kM][kN];
  PEREGRINE_UNROLL
  for (int m = 0; m < kM; ++m) {
    PEREGRINE_UNROLL
    for (int n = 0; n < kN; ++n) {
      sums[m][n] =
          begin == 0 ? _mm512_setzero_ps() : _mm512_load_ps(waiting + (m * kPanelInputs + n) * 16);
    }
  }
  add_steps<kM, kN>(rows, begin, end, inputs, sums);
  PEREGRINE_UNROLL
  for (int m = 0; m < kM; ++m) {
    PEREGRINE_UNROLL
    for (int n = 0; n < kN; ++n) {
      _mm512_store_ps(waiting + (m * kPanelInputs + n) * 16, sums[m][n]);
    }
  }
}

// kN inputs against the whole panel, chunk by chunk, so that a chunk of them stays in the
// first-level cache while the panel passes.
template <int kN>
void panel_inputs(const ProductArgs& args, const Scratch& scratch, int64_t steps, int row) {
  const int64_t stride = padded(args.weight->in);
  const int count = static_cast<int>(args.end - args.begin);
  const uint16_t* inputs[kN];
  for (int n = 0; n < kN; ++n) {
    inputs[n] = reinterpret_cast<const uint16_t*>(args.inputs[row + n]);
  }
  for (int64_t begin = 0; begin < steps; begin += kChunkBlocks) {
    const int64_t end = std::min(steps, begin + kChunkBlocks);
    int m = 0;
    for (; m + kRegisterRows <= count; m += kRegisterRows) {
      panel_chunk<kRegisterRows, kN>({scratch.panel + m * stride, stride}, begin, end, inputs,
                                     scratch.sums + m * kPanelInputs * 16);
    }
    for (; m < count; ++m) {
      panel_chunk<1, kN>({scratch.panel + m * stride, stride}, begin, end, inputs,
                         scratch.sums + m * kPanelInputs * 16);
    }
  }
  for (int n = 0; n < kN; ++n) {
    float* out = args.outputs[row + n] + args.begin;
    for (int m = 0; m < count; ++m) {
      const float sum = sum_lanes(_mm512_load_ps(scratch.sums + (m * kPanelInputs + n) * 16));
      out[m] = args.round ? round_bf16(sum) : sum;
    }
  }
}

void multiply_panel(const ProductArgs& args, const Scratch& scratch, int64_t steps) {
  int row = 0;
  for (; row + kPanelInputs <= args.rows; row += kPanelInputs) {
    panel_inputs<kPanelInputs>(args, scratch, steps, row);
  }
  switch (args.rows - row) {
    case 1:
      return panel_inputs<1>(args, scratch, steps, row);
    case 2:
      return panel_inputs<2>(args, scratch, steps, row);
    case 3:
      return panel_inputs<3>(args, scratch, steps, row);
    case 4:
      return panel_inputs<4>(args, scratch, steps, row);
    case 5:
      return panel_inputs<5>(args, scratch, steps, row);
    default:
      return;
  }
}

// ---- entry --------------------------------------------------------------------------------------

void multiply_bf16(const ProductArgs& args, const uint16_t* const* inputs) {
  const Bf16At rows_at{*args.weight};
  const int64_t steps = (args.weight->in + kBlock - 1) / kBlock;
  if (args.rows <= kDirectRows) return multiply_direct_rows(args, rows_at, steps, inputs);
  const Scratch scratch = split_scratch(args);
  widen(args, rows_at, steps, scratch.panel);
  multiply_panel(args, scratch, steps);
}

void multiply_fp4(const ProductArgs& args, const uint16_t* const* inputs) {
  const Scratch scratch = split_scratch(args);
  expand_fp4_scales(args, scratch.scales);
  const Fp4At rows_at{*args.weight, scratch.scales, args.begin};
  const int64_t steps = args.weight->in / kBlock;
  if (args.rows <= kDirectRows) return multiply_direct_rows(args, rows_at, steps, inputs);
  widen(args, rows_at, steps, scratch.panel);
  multiply_panel(args, scratch, steps);
}

// All rows of a tile share their scales, so few inputs are scaled instead of the weights.
void multiply_fp8(const ProductArgs& args, const uint16_t* const* inputs) {
  const Scratch scratch = split_scratch(args);
  const int64_t stride = padded(args.weight->in);
  const int64_t steps = stride / kPad;
  if (args.rows > kDirectRows) {
    widen_fp8(args, steps, scratch.panel);
    multiply_panel(args, scratch, steps * 2);
    return;
  }
  const int64_t blocks = args.weight->in / kBlock;
  const uint8_t* scales = args.weight->scale + args.begin / kTileOut * blocks;
  const uint16_t* scaled[kDirectRows];
  for (int row = 0; row < args.rows; ++row) scaled[row] = scratch.panel + row * stride;
  for (int64_t step = 0; step < steps; ++step) {
    const __m512i exponents = fp8_exponents(scales, step, blocks);
    for (int row = 0; row < args.rows; ++row) {
      const uint16_t* in = inputs[row] + step * kPad;
      uint16_t* out = scratch.panel + row * stride + step * kPad;
      _mm512_store_si512(out, scale_words(_mm512_load_si512(in), exponents));
      _mm512_store_si512(out + kBlock, scale_words(_mm512_load_si512(in + kBlock), exponents));
    }
  }
  multiply_direct_rows(args, Fp8At{*args.weight}, steps, scaled);
}

void multiply_any(const ProductArgs& args) {
  const uint16_t* inputs[kDirectRows] = {};
  for (int row = 0; row < std::min(args.rows, kDirectRows); ++row) {
    inputs[row] = reinterpret_cast<const uint16_t*>(args.inputs[row]);
  }
  switch (args.weight->format) {
    case WeightFormat::kBF16:
      return multiply_bf16(args, inputs);
    case WeightFormat::kF8:
      return multiply_fp8(args, inputs);
    case WeightFormat::kF4:
      return multiply_fp4(args, inputs);
    case WeightFormat::kF32:
      return;  // never sent here
  }
}

// ---- inputs -------------------------------------------------------------------------------------

// The value nearest to x in e4m3, ties to even; |x| is at most 448.
PEREGRINE_INLINE __m512 nearest_e4m3(__m512 x) {
  const __m512i all = _mm512_castps_si512(x);
  const __m512i sign = _mm512_and_si512(all, _mm512_set1_epi32(INT32_MIN));
  const __m512i bits = _mm512_andnot_si512(_mm512_set1_epi32(INT32_MIN), all);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 20), _mm512_set1_epi32(1));
  const __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFFF)));
  const __m512i normal = _mm512_and_si512(sum, _mm512_set1_epi32(static_cast<int>(0xFFF00000u)));
  // Adding 2^14 leaves multiples of 2^-9, the subnormal step.
  const __m512 step = _mm512_set1_ps(16384.0f);
  const __m512 magnitude = _mm512_castsi512_ps(bits);
  const __m512 subnormal = _mm512_sub_ps(_mm512_add_ps(magnitude, step), step);
  const __mmask16 small = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(0.015625f), _CMP_LT_OQ);
  const __m512i value = _mm512_mask_mov_epi32(normal, small, _mm512_castps_si512(subnormal));
  return _mm512_castsi512_ps(_mm512_or_si512(value, sign));
}

// 32 values, exact in bf16, as words in order.
PEREGRINE_INLINE __m512i to_words(__m512 first, __m512 second) {
  const __m256i a = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(first), 16));
  const __m256i b = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(second), 16));
  return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

// 32 inputs, or the first `count` of them and zeros, as words in order.
PEREGRINE_INLINE __m512i load_words(const float* values, int64_t count, bool quantise) {
  const uint32_t mask = count >= kBlock ? 0xFFFFFFFFu : (uint32_t{1} << count) - 1;
  __m512 first = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask & 0xFFFF), values);
  __m512 second = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), values + 16);
  if (!quantise) return to_words(first, second);
  constexpr float kMinimum = 1e-4f;
  const float amax = std::max(
      kMinimum, _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(first), _mm512_abs_ps(second))));
  const uint8_t byte = e8m0_ceil_scale(amax, kInverse448);
  const __m512 scale = _mm512_set1_ps(e8m0_value(byte));
  // The reciprocal of a power of two is exact; byte lies between 105 and 246 for finite inputs.
  const __m512 inverse = _mm512_set1_ps(e8m0_value(static_cast<uint8_t>(254 - byte)));
  const __m512 limit = _mm512_set1_ps(448.0f);
  const __m512 lower = _mm512_set1_ps(-448.0f);
  first = _mm512_min_ps(_mm512_max_ps(_mm512_mul_ps(first, inverse), lower), limit);
  second = _mm512_min_ps(_mm512_max_ps(_mm512_mul_ps(second, inverse), lower), limit);
  return to_words(_mm512_mul_ps(nearest_e4m3(first), scale),
                  _mm512_mul_ps(nearest_e4m3(second), scale));
}

void prepare_row(WeightFormat format, bool quantise, const float* values, int64_t n,
                 std::byte* row) {
  uint16_t* out = reinterpret_cast<uint16_t*>(row);
  const __m512i even_odd = _mm512_load_si512(kTables.even_odd);
  const __m512i unpack_low = _mm512_load_si512(kTables.unpack_low);
  const __m512i unpack_high = _mm512_load_si512(kTables.unpack_high);
  for (int64_t at = 0; at < n; at += kPad) {
    __m512i words[2];
    words[0] = load_words(values + at, n - at, quantise);
    words[1] = n - at > kBlock ? load_words(values + at + kBlock, n - at - kBlock, quantise)
                               : _mm512_setzero_si512();
    if (format == WeightFormat::kF4) {
      words[0] = _mm512_permutexvar_epi16(even_odd, words[0]);
      words[1] = _mm512_permutexvar_epi16(even_odd, words[1]);
    } else if (format == WeightFormat::kF8) {
      const __m512i low = _mm512_permutex2var_epi16(words[0], unpack_low, words[1]);
      words[1] = _mm512_permutex2var_epi16(words[0], unpack_high, words[1]);
      words[0] = low;
    }
    _mm512_store_si512(out + at, words[0]);
    _mm512_store_si512(out + at + kBlock, words[1]);
  }
}

size_t row_bytes(int64_t n) { return static_cast<size_t>(padded(n)) * sizeof(uint16_t); }

}  // namespace
}  // namespace bf16
}  // namespace peregrine::cpu
HWY_POP_ATTRIBUTES

namespace peregrine::cpu {
namespace {

bool cpu_has_bf16() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512vbmi") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0;
}

constexpr ProductKernel kBf16Kernel{.row_bytes = &bf16::row_bytes,
                                    .scratch_bytes = &bf16::scratch_bytes,
                                    .prepare = &bf16::prepare_row,
                                    .multiply = &bf16::multiply_any};

}  // namespace

const ProductKernel* bf16_product_kernel() {
  static const bool present = cpu_has_bf16();
  return present ? &kBf16Kernel : nullptr;
}

}  // namespace peregrine::cpu

#else

namespace peregrine::cpu {
const ProductKernel* bf16_product_kernel() { return nullptr; }
}  // namespace peregrine::cpu

#endif
