// Sparse attention of one query with bf16 dot products, for x86 with AVX-512 BF16 and VBMI.
//
// Rows, queries and rounded probabilities are bf16 numbers, so the two-element dot product loses
// nothing but the order of f32 sums. A tile of 64 rows is widened once, in two layouts: by row for
// the scores, where a lane sums pairs of dims, and by pairs of rows for the values, where a lane is
// a dim and sums pairs of rows.
#include "backend/cpu/kernels.h"

#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the "undefined" operands inside its own intrinsics for uninitialised variables.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"

#define PEREGRINE_UNROLL _Pragma("GCC unroll 16")
#define PEREGRINE_INLINE inline __attribute__((always_inline))

namespace peregrine::cpu {
namespace attention_bf16 {
namespace {

constexpr int kTileRows = 64;
constexpr int kHeads = 4;  // of a register tile
constexpr float kMaximumStart = -1e30f;

struct alignas(64) Tables {
  float fp4[16];           // e2m1 values
  uint16_t pairs_low[32];  // words 0..15 of two rows, alternating
  uint16_t pairs_high[32];
};

Tables make_tables() {
  Tables tables{};
  for (int i = 0; i < 16; ++i) tables.fp4[i] = e2m1_value(static_cast<uint8_t>(i));
  for (int i = 0; i < 32; ++i) {
    tables.pairs_low[i] = static_cast<uint16_t>(i / 2 + (i % 2) * 32);
    tables.pairs_high[i] = static_cast<uint16_t>(16 + i / 2 + (i % 2) * 32);
  }
  return tables;
}

const Tables kTables = make_tables();

struct Scratch {
  float* numerators;    // [heads, dim]
  uint16_t* rows;       // [kTileRows, dim]
  uint16_t* pairs;      // [kTileRows / 2, dim, 2]
  uint16_t* queries;    // [heads, dim]
  float* scores;        // [kHeads, kTileRows]
  uint16_t* weights;    // [kHeads, kTileRows] probabilities
  float* maxima;        // [heads]
  float* denominators;  // [heads]
};

size_t attend_scratch_bytes(int heads, int dim) {
  const size_t h = (static_cast<size_t>(heads) + 15) / 16 * 16;
  const size_t d = static_cast<size_t>(dim);
  return h * d * 4 + 2 * kTileRows * d * 2 + h * d * 2 + kHeads * kTileRows * (4 + 2) + 2 * h * 4;
}

Scratch split_scratch(const AttendArgs& args) {
  const int h = (args.heads + 15) / 16 * 16;
  Scratch scratch;
  scratch.numerators = args.scratch;
  scratch.rows = reinterpret_cast<uint16_t*>(scratch.numerators + h * args.dim);
  scratch.pairs = scratch.rows + kTileRows * args.dim;
  scratch.queries = scratch.pairs + kTileRows * args.dim;
  scratch.scores = reinterpret_cast<float*>(scratch.queries + h * args.dim);
  scratch.weights = reinterpret_cast<uint16_t*>(scratch.scores + kHeads * kTileRows);
  scratch.maxima = reinterpret_cast<float*>(scratch.weights + kHeads * kTileRows);
  scratch.denominators = scratch.maxima + h;
  return scratch;
}

}  // namespace
}  // namespace attention_bf16
}  // namespace peregrine::cpu

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512bf16,avx2,fma,f16c,bmi2")
namespace peregrine::cpu {
namespace attention_bf16 {
namespace {

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

// To bf16, to nearest even; inputs are not NaN.
PEREGRINE_INLINE __m512i round_bits(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
}

// The upper words of sixteen floats.
PEREGRINE_INLINE __m256i upper_words(__m512i bits) {
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
}

// exp(x) for x <= 0 with a relative error below 2^-23; results below 2^-126 are zero. Range
// reduction by multiples of ln 2 in two parts, then the Taylor polynomial of degree 7 on
// |r| <= ln(2) / 2, whose first term left out is below 2^-27.
PEREGRINE_INLINE __m512 exponential(__m512 x) {
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145752f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860677e-6f), r);
  __m512 y = _mm512_set1_ps(1.0f / 5040);
  for (const float factor : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(factor));
  }
  const __mmask16 in_range = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_GE_OQ);
  return _mm512_maskz_scalef_ps(in_range, y, n);
}

// ---- widening -----------------------------------------------------------------------------------

// Values of sixteen e4m3 codes: through fp16, whose exponent is one bit longer and which keeps
// subnormal codes; its bias differs by 8.
PEREGRINE_INLINE __m512 e4m3_values(const uint8_t* codes) {
  const __m256i words = _mm256_slli_epi16(
      _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes))), 8);
  const __m256i half = _mm256_and_si256(_mm256_srai_epi16(words, 1),
                                        _mm256_set1_epi16(static_cast<int16_t>(0xBFFF)));
  return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f));
}

PEREGRINE_INLINE void store_values(__m512 values, uint16_t* out) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(out),
                     upper_words(_mm512_castps_si512(values)));  // exact
}

void widen_window_row(const uint8_t* packed, int dim, uint16_t* out) {
  for (int i = 0; i < dim; i += 16) {
    const __m512 scale = _mm512_set1_ps(e8m0_value(packed[dim + i / 32]));
    store_values(_mm512_mul_ps(e4m3_values(packed + i), scale), out + i);
  }
}

void widen_main_row(const uint8_t* packed, int dim, uint16_t* out) {
  const uint8_t* scales = packed + dim / 2;
  const __m512 table = _mm512_load_ps(kTables.fp4);
  for (int i = 0; i < dim; i += 16) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(packed + i / 2));
    // Low nibbles at even places, high nibbles at odd ones; the look-up takes four bits.
    const __m128i codes = _mm_unpacklo_epi8(bytes, _mm_srli_epi16(bytes, 4));
    const __m512 values = _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(codes), table);
    const __m512 scale = _mm512_set1_ps(e4m3_value(scales[i / 16]));
    store_values(_mm512_mul_ps(values, scale), out + i);
  }
}

// Rows beyond the list count as zeros.
void widen_tile(const AttendArgs& args, const Scratch& scratch, int begin, int count) {
  for (int t = 0; t < count; ++t) {
    uint16_t* out = scratch.rows + t * args.dim;
    if (begin + t < args.window_rows) {
      widen_window_row(args.rows[begin + t], args.dim, out);
    } else {
      widen_main_row(args.rows[begin + t], args.dim, out);
    }
  }
  if (count % 2 == 1) {
    std::memset(scratch.rows + count * args.dim, 0, sizeof(uint16_t) * args.dim);
  }
  const __m512i low = _mm512_load_si512(kTables.pairs_low);
  const __m512i high = _mm512_load_si512(kTables.pairs_high);
  for (int t = 0; t < count; t += 2) {
    const uint16_t* first = scratch.rows + t * args.dim;
    uint16_t* out = scratch.pairs + t * args.dim;
    for (int i = 0; i < args.dim; i += 32) {
      const __m512i a = _mm512_load_si512(first + i);
      const __m512i b = _mm512_load_si512(first + args.dim + i);
      _mm512_store_si512(out + 2 * i, _mm512_permutex2var_epi16(a, low, b));
      _mm512_store_si512(out + 2 * i + 32, _mm512_permutex2var_epi16(a, high, b));
    }
  }
}

// ---- one tile of rows against kH heads ----------------------------------------------------------

template <int kH, int kT>
PEREGRINE_INLINE void dots(const AttendArgs& args, const uint16_t* q, const uint16_t* rows,
                           float* scores) {
  __m512 sums[kH][kT];
  PEREGRINE_UNROLL
  for (int h = 0; h < kH; ++h) {
    PEREGRINE_UNROLL
    for (int t = 0; t < kT; ++t) sums[h][t] = _mm512_setzero_ps();
  }
  for (int i = 0; i < args.dim; i += 32) {
    __m512i keys[kT];
    PEREGRINE_UNROLL
    for (int t = 0; t < kT; ++t) keys[t] = _mm512_load_si512(rows + t * args.dim + i);
    PEREGRINE_UNROLL
    for (int h = 0; h < kH; ++h) {
      const __m512i query = _mm512_load_si512(q + h * args.dim + i);
      PEREGRINE_UNROLL
      for (int t = 0; t < kT; ++t) sums[h][t] = dot(sums[h][t], query, keys[t]);
    }
  }
  PEREGRINE_UNROLL
  for (int h = 0; h < kH; ++h) {
    PEREGRINE_UNROLL
    for (int t = 0; t < kT; ++t) scores[h * kTileRows + t] = sum_lanes(sums[h][t]) * args.scale;
  }
}

// numerators = numerators * rescale + sum over pairs of rows, for kC times 16 dims.
template <int kH, int kC>
PEREGRINE_INLINE void add_values(const uint16_t* weights, const float* rescale,
                                 const uint16_t* pairs, int count, int dim, float* numerators) {
  __m512 sums[kH][kC];
  PEREGRINE_UNROLL
  for (int h = 0; h < kH; ++h) {
    PEREGRINE_UNROLL
    for (int c = 0; c < kC; ++c) {
      sums[h][c] =
          _mm512_mul_ps(_mm512_load_ps(numerators + h * dim + c * 16), _mm512_set1_ps(rescale[h]));
    }
  }
  for (int t = 0; t < count; t += 2) {
    __m512i values[kC];
    PEREGRINE_UNROLL
    for (int c = 0; c < kC; ++c) values[c] = _mm512_load_si512(pairs + t * dim + c * 32);
    PEREGRINE_UNROLL
    for (int h = 0; h < kH; ++h) {
      int32_t both = 0;
      std::memcpy(&both, weights + h * kTileRows + t, sizeof(both));
      const __m512i weight = _mm512_set1_epi32(both);
      PEREGRINE_UNROLL
      for (int c = 0; c < kC; ++c) sums[h][c] = dot(sums[h][c], weight, values[c]);
    }
  }
  PEREGRINE_UNROLL
  for (int h = 0; h < kH; ++h) {
    PEREGRINE_UNROLL
    for (int c = 0; c < kC; ++c) _mm512_store_ps(numerators + h * dim + c * 16, sums[h][c]);
  }
}

// Scores of one head become probabilities, zero beyond `count`; returns the factor for what earlier
// tiles added.
PEREGRINE_INLINE float softmax_tile(int count, const float* scores, uint16_t* weights,
                                    float& maximum_so_far, float& denominator) {
  __m512 z[kTileRows / 16];
  __m512 best = _mm512_set1_ps(maximum_so_far);
  PEREGRINE_UNROLL
  for (int i = 0; i < kTileRows / 16; ++i) {
    const int left = std::clamp(count - 16 * i, 0, 16);
    const auto mask = static_cast<__mmask16>((1u << left) - 1);
    z[i] = _mm512_mask_loadu_ps(_mm512_set1_ps(kMaximumStart), mask, scores + 16 * i);
    best = _mm512_max_ps(best, z[i]);
  }
  const float highest = _mm512_reduce_max_ps(best);
  const float rescale = _mm512_cvtss_f32(exponential(_mm512_set1_ps(maximum_so_far - highest)));
  maximum_so_far = highest;
  __m512 sum = _mm512_setzero_ps();
  PEREGRINE_UNROLL
  for (int i = 0; i < kTileRows / 16; ++i) {
    const int left = std::clamp(count - 16 * i, 0, 16);
    const auto mask = static_cast<__mmask16>((1u << left) - 1);
    const __m512 e =
        _mm512_maskz_mov_ps(mask, exponential(_mm512_sub_ps(z[i], _mm512_set1_ps(highest))));
    sum = _mm512_add_ps(sum, e);
    _mm256_store_si256(reinterpret_cast<__m256i*>(weights + 16 * i), upper_words(round_bits(e)));
  }
  denominator = denominator * rescale + sum_lanes(sum);
  return rescale;
}

template <int kH>
PEREGRINE_INLINE void attend_heads(const AttendArgs& args, const Scratch& scratch, int h,
                                   int count) {
  const uint16_t* q = scratch.queries + h * args.dim;
  int t = 0;
  for (; t + 4 <= count; t += 4) {
    dots<kH, 4>(args, q, scratch.rows + t * args.dim, scratch.scores + t);
  }
  for (; t < count; ++t) {
    dots<kH, 1>(args, q, scratch.rows + t * args.dim, scratch.scores + t);
  }
  float rescale[kH];
  for (int i = 0; i < kH; ++i) {
    rescale[i] =
        softmax_tile(count, scratch.scores + i * kTileRows, scratch.weights + i * kTileRows,
                     scratch.maxima[h + i], scratch.denominators[h + i]);
  }
  float* numerators = scratch.numerators + h * args.dim;
  int d = 0;
  for (; d + 64 <= args.dim; d += 64) {
    add_values<kH, 4>(scratch.weights, rescale, scratch.pairs + 2 * d, count, args.dim,
                      numerators + d);
  }
  for (; d < args.dim; d += 16) {
    add_values<kH, 1>(scratch.weights, rescale, scratch.pairs + 2 * d, count, args.dim,
                      numerators + d);
  }
}

void attend(const AttendArgs& args) {
  const Scratch scratch = split_scratch(args);
  for (int i = 0; i < args.heads * args.dim; i += 16) {
    store_values(_mm512_loadu_ps(args.q + i), scratch.queries + i);
    _mm512_store_ps(scratch.numerators + i, _mm512_setzero_ps());
  }
  std::fill_n(scratch.maxima, args.heads, kMaximumStart);
  std::fill_n(scratch.denominators, args.heads, 0.0f);
  for (int begin = 0; begin < args.total_rows; begin += kTileRows) {
    const int count = std::min(kTileRows, args.total_rows - begin);
    widen_tile(args, scratch, begin, count);
    int h = 0;
    for (; h + kHeads <= args.heads; h += kHeads) attend_heads<kHeads>(args, scratch, h, count);
    for (; h < args.heads; ++h) attend_heads<1>(args, scratch, h, count);
  }
  for (int h = 0; h < args.heads; ++h) {
    // A sink may lie far above the scores, so this exponential is not of the kind above.
    const float sink = std::exp(args.sinks[h] - scratch.maxima[h]);
    const __m512 denominator = _mm512_set1_ps(scratch.denominators[h] + sink);
    for (int i = 0; i < args.dim; i += 16) {
      const __m512 value =
          _mm512_div_ps(_mm512_load_ps(scratch.numerators + h * args.dim + i), denominator);
      const __m512i bits =
          _mm512_and_si512(round_bits(value), _mm512_set1_epi32(static_cast<int>(0xFFFF0000u)));
      _mm512_storeu_ps(args.out + h * args.dim + i, _mm512_castsi512_ps(bits));
    }
  }
}

}  // namespace
}  // namespace attention_bf16
}  // namespace peregrine::cpu
HWY_POP_ATTRIBUTES

namespace peregrine::cpu {

void use_bf16_attention(AttentionKernel& kernel) {
  kernel.attend_scratch_bytes = &attention_bf16::attend_scratch_bytes;
  kernel.attend = &attention_bf16::attend;
}

}  // namespace peregrine::cpu

#else

namespace peregrine::cpu {
void use_bf16_attention(AttentionKernel&) {}
}  // namespace peregrine::cpu

#endif
