// Sparse attention of one query and index scores, straight from packed rows,
// for every Highway target (spec: model.md 5.6, 5.9).
//
// All heads share one key that is also the value, so a row is widened once,
// into a tile of 64 rows that all heads of the query then pass over.
#include "backend/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention_ops.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

#include <algorithm>
#include <cstring>

#include "backend/cpu/kernels.h"
#include "backend/cpu/lanes-inl.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"

HWY_BEFORE_NAMESPACE();
namespace peregrine::cpu::HWY_NAMESPACE {
namespace {

constexpr int kTileRows = 64;
constexpr float kMaximumStart = -1e30f;
// Heads, and rows or sixteens of dims, of a register tile.
constexpr int kHeads = kParts <= 2 ? 4 : 2;
constexpr int kAcross = kParts == 1 ? 4 : 1;

// ---- widening -----------------------------------------------------------------------------------

void widen_window_row(const uint8_t* packed, int dim, float* out) {
  for (int i = 0; i < dim; i += 16) {
    store(e4m3_scaled(packed + i, e8m0_value(packed[dim + i / 32])), out + i);
  }
}

void widen_main_row(const uint8_t* packed, int dim, float* out) {
  const uint8_t* scales = packed + dim / 2;
  for (int i = 0; i < dim; i += 16) {
    HWY_ALIGN uint8_t codes[16];
    for (int pair = 0; pair < 8; ++pair) {
      codes[2 * pair] = packed[i / 2 + pair] & 15;
      codes[2 * pair + 1] = packed[i / 2 + pair] >> 4;
    }
    const E2m1Table table = e2m1_table(e4m3_value(scales[i / 16]));
    PEREGRINE_UNROLL
    for (size_t p = 0; p < kParts; ++p) {
      hn::StoreU(e2m1_scaled(load_bytes(codes + p * kVectorLanes), table), FloatTag(),
                 out + i + p * kVectorLanes);
    }
  }
}

// ---- attention ----------------------------------------------------------------------------------

struct AttendScratch {
  float* tile;          // [kTileRows, dim]
  float* numerators;    // [heads, dim]
  float* scores;        // [kHeads, kTileRows]
  float* maxima;        // [heads]
  float* denominators;  // [heads]
};

size_t attend_scratch_bytes(int heads, int dim) {
  const size_t floats = static_cast<size_t>(kTileRows) * dim + static_cast<size_t>(heads) * dim +
                        static_cast<size_t>(kHeads) * kTileRows + 2 * static_cast<size_t>(heads);
  return floats * sizeof(float);
}

AttendScratch split_scratch(const AttendArgs& args) {
  AttendScratch scratch;
  scratch.tile = args.scratch;
  scratch.numerators = scratch.tile + kTileRows * args.dim;
  scratch.scores = scratch.numerators + args.heads * args.dim;
  scratch.maxima = scratch.scores + kHeads * kTileRows;
  scratch.denominators = scratch.maxima + args.heads;
  return scratch;
}

template <int kH, int kT>
HWY_INLINE void dots(const AttendArgs& args, const float* q, const float* tile, float* scores) {
  Lanes sums[kH][kT];
  PEREGRINE_UNROLL
  for (int h = 0; h < kH; ++h) {
    PEREGRINE_UNROLL
    for (int t = 0; t < kT; ++t) sums[h][t] = broadcast(0.0f);
  }
  for (int i = 0; i < args.dim; i += 16) {
    Lanes keys[kT];
    PEREGRINE_UNROLL
    for (int t = 0; t < kT; ++t) keys[t] = load(tile + t * args.dim + i);
    PEREGRINE_UNROLL
    for (int h = 0; h < kH; ++h) {
      const Lanes query = load(q + h * args.dim + i);
      PEREGRINE_UNROLL
      for (int t = 0; t < kT; ++t) multiply_add(query, keys[t], sums[h][t]);
    }
  }
  PEREGRINE_UNROLL
  for (int h = 0; h < kH; ++h) {
    PEREGRINE_UNROLL
    for (int t = 0; t < kT; ++t) scores[h * kTileRows + t] = sum_lanes(sums[h][t]) * args.scale;
  }
}

// numerators = numerators * rescale + sum over t of weights[t] * tile[t], for
// kC times 16 dims.
template <int kH, int kC>
HWY_INLINE void add_values(const float* weights, const float* rescale, const float* tile, int count,
                           int dim, float* numerators) {
  Lanes sums[kH][kC];
  PEREGRINE_UNROLL
  for (int h = 0; h < kH; ++h) {
    PEREGRINE_UNROLL
    for (int c = 0; c < kC; ++c) {
      sums[h][c] = multiply(load(numerators + h * dim + c * 16), broadcast(rescale[h]));
    }
  }
  for (int t = 0; t < count; ++t) {
    Lanes values[kC];
    PEREGRINE_UNROLL
    for (int c = 0; c < kC; ++c) values[c] = load(tile + t * dim + c * 16);
    PEREGRINE_UNROLL
    for (int h = 0; h < kH; ++h) {
      const Lanes weight = broadcast(weights[h * kTileRows + t]);
      PEREGRINE_UNROLL
      for (int c = 0; c < kC; ++c) multiply_add(weight, values[c], sums[h][c]);
    }
  }
  PEREGRINE_UNROLL
  for (int h = 0; h < kH; ++h) {
    PEREGRINE_UNROLL
    for (int c = 0; c < kC; ++c) store(sums[h][c], numerators + h * dim + c * 16);
  }
}

HWY_INLINE Lanes exponential(const Lanes& x) {
  Lanes y;
  PEREGRINE_UNROLL
  for (size_t p = 0; p < kParts; ++p) y.part[p] = hn::Exp(FloatTag(), x.part[p]);
  return y;
}

HWY_INLINE float exponential(float x) { return hn::GetLane(exponential(broadcast(x)).part[0]); }

// Scores of one head in a tile become weights; returns the factor for what
// earlier tiles added.
HWY_INLINE float softmax_tile(const AttendArgs& args, int count, float* scores,
                              float& maximum_so_far, float& denominator) {
  for (int t = count; t < kTileRows; ++t) scores[t] = kMaximumStart;
  Lanes best = broadcast(maximum_so_far);
  for (int t = 0; t < kTileRows; t += 16) best = maximum(best, load(scores + t));
  const float highest = max_lanes(best);
  const float rescale = exponential(maximum_so_far - highest);
  maximum_so_far = highest;

  Lanes sum = broadcast(0.0f);
  for (int t = 0; t < count; t += 16) {
    HWY_ALIGN float values[16];
    Lanes differences;
    const Lanes raw = load(scores + t);
    PEREGRINE_UNROLL
    for (size_t p = 0; p < kParts; ++p) {
      differences.part[p] = hn::Sub(raw.part[p], hn::Set(FloatTag(), highest));
    }
    store(exponential(differences), values);
    for (int i = std::max(0, count - t); i < 16; ++i) values[i] = 0.0f;  // beyond the list
    const Lanes e = load(values);
    sum = add(sum, e);
    store(rounded_if(args.round, e), scores + t);
  }
  denominator = denominator * rescale + sum_lanes(sum);
  return rescale;
}

template <int kH>
HWY_INLINE void attend_tile_heads(const AttendArgs& args, const AttendScratch& scratch, int h,
                                  int count) {
  const float* q = args.q + h * args.dim;
  int t = 0;
  for (; t + kAcross <= count; t += kAcross) {
    dots<kH, kAcross>(args, q, scratch.tile + t * args.dim, scratch.scores + t);
  }
  for (; t < count; ++t) dots<kH, 1>(args, q, scratch.tile + t * args.dim, scratch.scores + t);
  float rescale[kH];
  for (int i = 0; i < kH; ++i) {
    rescale[i] = softmax_tile(args, count, scratch.scores + i * kTileRows, scratch.maxima[h + i],
                              scratch.denominators[h + i]);
  }
  float* numerators = scratch.numerators + h * args.dim;
  int d = 0;
  for (; d + kAcross * 16 <= args.dim; d += kAcross * 16) {
    add_values<kH, kAcross>(scratch.scores, rescale, scratch.tile + d, count, args.dim,
                            numerators + d);
  }
  for (; d < args.dim; d += 16) {
    add_values<kH, 1>(scratch.scores, rescale, scratch.tile + d, count, args.dim, numerators + d);
  }
}

void attend(const AttendArgs& args) {
  const AttendScratch scratch = split_scratch(args);
  std::memset(scratch.numerators, 0, sizeof(float) * static_cast<size_t>(args.heads * args.dim));
  std::fill_n(scratch.maxima, args.heads, kMaximumStart);
  std::fill_n(scratch.denominators, args.heads, 0.0f);
  for (int begin = 0; begin < args.total_rows; begin += kTileRows) {
    const int count = std::min(kTileRows, args.total_rows - begin);
    for (int t = 0; t < count; ++t) {
      float* out = scratch.tile + t * args.dim;
      if (begin + t < args.window_rows) {
        widen_window_row(args.rows[begin + t], args.dim, out);
      } else {
        widen_main_row(args.rows[begin + t], args.dim, out);
      }
    }
    int h = 0;
    for (; h + kHeads <= args.heads; h += kHeads) {
      attend_tile_heads<kHeads>(args, scratch, h, count);
    }
    for (; h < args.heads; ++h) attend_tile_heads<1>(args, scratch, h, count);
  }
  for (int h = 0; h < args.heads; ++h) {
    // Sinks far above all scores stay finite; without any row the sink term is
    // infinite or so large that the quotient, of a zero, is zero.
    const float sink = args.total_rows == 0 ? 1.0f : exponential(args.sinks[h] - scratch.maxima[h]);
    const FloatVector denominator = hn::Set(FloatTag(), scratch.denominators[h] + sink);
    for (int i = 0; i < args.dim; i += 16) {
      Lanes value = load(scratch.numerators + h * args.dim + i);
      PEREGRINE_UNROLL
      for (size_t p = 0; p < kParts; ++p) value.part[p] = hn::Div(value.part[p], denominator);
      store(rounded_if(args.round, value), args.out + h * args.dim + i);
    }
  }
}

// ---- index scores -------------------------------------------------------------------------------

// words[w][key]: the w-th eight of 32 codes of every key, which start at `offset` of its row.
HWY_INLINE void transpose_codes(const uint8_t* const* keys, int offset,
                                uint32_t (*words)[kKeyGroup]) {
#if HWY_TARGET == HWY_SCALAR
  for (int key = 0; key < kKeyGroup; ++key) {
    for (int w = 0; w < 4; ++w)
      std::memcpy(&words[w][key], keys[key] + offset + 4 * w, sizeof(uint32_t));
  }
#else
  const hn::Full128<uint8_t> bytes;
  const hn::Full128<uint32_t> fours;
  const hn::Full128<uint64_t> twos;
  for (int key = 0; key < kKeyGroup; key += 4) {
    const auto row = [&](int i) {
      return hn::BitCast(fours, hn::LoadU(bytes, keys[key + i] + offset));
    };
    const auto a = row(0), b = row(1), c = row(2), d = row(3);
    const auto ab_low = hn::BitCast(twos, hn::InterleaveLower(fours, a, b));
    const auto ab_high = hn::BitCast(twos, hn::InterleaveUpper(fours, a, b));
    const auto cd_low = hn::BitCast(twos, hn::InterleaveLower(fours, c, d));
    const auto cd_high = hn::BitCast(twos, hn::InterleaveUpper(fours, c, d));
    const auto put = [&](int w, auto pairs) {
      hn::Store(hn::BitCast(fours, pairs), fours, words[w] + key);
    };
    put(0, hn::InterleaveLower(twos, ab_low, cd_low));
    put(1, hn::InterleaveUpper(twos, ab_low, cd_low));
    put(2, hn::InterleaveLower(twos, ab_high, cd_high));
    put(3, hn::InterleaveUpper(twos, ab_high, cd_high));
  }
#endif
}

// The keys' values transposed: out[d][key], so that a lane is a key and every
// product is summed in ascending order of d, as the reference does. Products of
// fp4 values are exact.
void transpose_keys(const ScoreArgs& args, float* out) {
  const BitsTag bits_tag;
  const E2m1Table table = e2m1_table(1.0f);
  const uint8_t* keys[kKeyGroup];
  // The scores of lanes beyond the last key are dropped.
  for (int key = 0; key < kKeyGroup; ++key) keys[key] = args.keys[std::min(key, args.count - 1)];
  for (int begin = 0; begin < args.dim; begin += 32) {
    HWY_ALIGN uint32_t words[4][kKeyGroup];
    HWY_ALIGN float scales[kKeyGroup];
    transpose_codes(keys, begin / 2, words);
    for (int key = 0; key < kKeyGroup; ++key)
      scales[key] = e8m0_value(keys[key][args.dim / 2 + begin / 32]);
    for (int w = 0; w < 4; ++w) {
      PEREGRINE_UNROLL
      for (size_t p = 0; p < kParts; ++p) {
        BitsVector codes = hn::Load(bits_tag, words[w] + p * kVectorLanes);
        const FloatVector scale = hn::Load(FloatTag(), scales + p * kVectorLanes);
        for (int i = 0; i < 8; ++i) {
          hn::Store(hn::Mul(e2m1_scaled(codes, table), scale), FloatTag(),
                    out + (begin + 8 * w + i) * kKeyGroup + p * kVectorLanes);
          codes = hn::ShiftRight<4>(codes);
        }
      }
    }
  }
}

// products[h] = q head h . keys, for kH heads.
template <int kH>
HWY_INLINE void key_products(const float* q, const float* keys, int dim, Lanes products[kH]) {
  PEREGRINE_UNROLL
  for (int h = 0; h < kH; ++h) products[h] = broadcast(0.0f);
  for (int d = 0; d < dim; ++d) {
    const Lanes key = load(keys + d * kKeyGroup);
    PEREGRINE_UNROLL
    for (int h = 0; h < kH; ++h) multiply_add(broadcast(q[h * dim + d]), key, products[h]);
  }
}

template <int kH>
HWY_INLINE void add_heads(const ScoreArgs& args, int row, int h, const float* keys, Lanes& score) {
  Lanes products[kH];
  key_products<kH>(args.queries[row] + h * args.dim, keys, args.dim, products);
  PEREGRINE_UNROLL
  for (int i = 0; i < kH; ++i) {
    Lanes product = rounded_if(args.round, products[i]);
    product = maximum(product, broadcast(0.0f));
    product = multiply(product, broadcast(args.weights[row][h + i]));
    score = add(score, rounded_if(args.round, product));
  }
}

void score_keys(const ScoreArgs& args) {
  // Heads side by side, so that a sum need not wait for its last product.
  constexpr int kWide = kParts == 1 ? 16 : (kParts == 2 ? 4 : 2);
  constexpr int kNarrow = kParts == 1 ? 4 : 1;
  transpose_keys(args, args.scratch);
  for (int row = 0; row < args.rows; ++row) {
    Lanes score = broadcast(0.0f);
    int h = 0;
    for (; h + kWide <= args.heads; h += kWide) {
      add_heads<kWide>(args, row, h, args.scratch, score);
    }
    for (; h + kNarrow <= args.heads; h += kNarrow) {
      add_heads<kNarrow>(args, row, h, args.scratch, score);
    }
    for (; h < args.heads; ++h) add_heads<1>(args, row, h, args.scratch, score);
    HWY_ALIGN float scores[kKeyGroup];
    store(rounded_if(args.round, score), scores);
    std::copy_n(scores, args.count, args.scores[row]);
  }
}

AttentionKernel make_kernel() {
  return {
      .attend_scratch_bytes = &attend_scratch_bytes, .attend = &attend, .score_keys = &score_keys};
}

}  // namespace
}  // namespace peregrine::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace peregrine::cpu {

HWY_EXPORT(make_kernel);

AttentionKernel attention_kernel(int64_t target) {
  return HWY_DISPATCH_TABLE(make_kernel)[target_index(target)]();
}

}  // namespace peregrine::cpu
#endif
