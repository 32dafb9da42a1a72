// The SIMD kernels behind the cpu backend as tables of functions, one table a dispatch target.
//
// Two families multiply. The f32 family (Highway, every target) widens weights to floats and uses
// fused multiply-add. The bf16 family (AVX-512 with BF16 and VBMI) widens to bf16 and uses the
// two-element dot product instruction. Which one serves a weight depends on the device, the
// numerics and the weight's format, never on the number of rows.
//
// Order of sums. Every product of a family runs along the inputs in ascending blocks of 32 into 16
// lanes (f32: element i of a half block goes to lane i; bf16: an adjacent pair goes to a lane), and
// the lanes are added as a fixed tree at the end. Scales are powers of two and are folded into an
// operand, which is exact. So the order is a function of format and length alone: the decode loop
// and the panel loop of a family give the same bits. Vector width does not matter either; targets
// with fused multiply-add agree bit for bit.
//
// Assumed: weight scales between 2^-90 and 2^80 where their codes are not all zero, so that no
// scaled bf16 operand leaves the normal range; stored bf16 numbers below 2^-126 count as zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/tensor.h"

namespace peregrine::cpu {

// Rows of a weight that share F8 scales; a piece of work never crosses a multiple of it.
inline constexpr int64_t kTileOut = 32;

// y[r][o] = row r of the input . weight row o, for o in [begin, end) within one tile.
struct ProductArgs {
  const Weight* weight = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
  const std::byte* const* inputs = nullptr;  // prepared rows
  float* const* outputs = nullptr;           // [rows], indexed by o
  int rows = 0;
  bool round = false;            // outputs to bf16
  std::byte* scratch = nullptr;  // scratch_bytes(weight->in), aligned to 64
};

struct ProductKernel {
  // Bytes of one prepared input row of n values, a multiple of 64.
  size_t (*row_bytes)(int64_t n) = nullptr;
  size_t (*scratch_bytes)(int64_t n) = nullptr;
  // Lays out n values in the order in which the loops meet a weight of this format, padded with
  // zeros. With `quantise` values go through act_quant first (n is then a multiple of 32).
  void (*prepare)(WeightFormat format, bool quantise, const float* values, int64_t n,
                  std::byte* row) = nullptr;
  void (*multiply)(const ProductArgs& args) = nullptr;
};

// One query row against a list of packed rows, for some of its heads (spec: model.md 5.9).
struct AttendArgs {
  const float* q = nullptr;  // [heads, dim]
  int heads = 0;
  int dim = 0;  // multiple of 32
  float scale = 0;
  const float* sinks = nullptr;          // [heads]
  const uint8_t* const* rows = nullptr;  // packed: window rows, then main rows
  int window_rows = 0;
  int total_rows = 0;
  bool round = false;        // probabilities in the value product, and the result, to bf16
  float* out = nullptr;      // [heads, dim]
  float* scratch = nullptr;  // attend_scratch_bytes, aligned to 64
};

// A group of up to kKeyGroup index keys against query rows (spec: model.md 5.6).
inline constexpr int kKeyGroup = 16;
struct ScoreArgs {
  const float* const* queries = nullptr;  // [rows] of [heads, dim], already fp4 values
  const float* const* weights = nullptr;  // [rows] of [heads]
  int rows = 0;
  int heads = 0;
  int dim = 0;                           // multiple of 32
  const uint8_t* const* keys = nullptr;  // packed index rows
  int count = 0;
  bool round = false;
  float* const* scores = nullptr;  // [rows] of [count]
  float* scratch = nullptr;        // dim * kKeyGroup floats, aligned to 64
};

// The indices of the min(k, n) best of `scores` [n], ascending, to `out`; returns their number.
// Higher score first, then lower index; NaN counts as -infinity.
struct TopKArgs {
  const float* scores = nullptr;
  int64_t n = 0;
  int64_t k = 0;
  bool skip_infinite = false;   // chosen indices of score -infinity are left out
  uint32_t* scratch = nullptr;  // top_k_scratch(n) numbers
  int32_t* out = nullptr;
};
using TopK = int64_t (*)(const TopKArgs& args);
inline size_t top_k_scratch(int64_t n) { return (static_cast<size_t>(n) + 15) / 16 * 16; }

// Vector operations on single rows. Those that are elementwise keep the reference's order.
struct VectorKernel {
  float (*sum_squares)(const float* x, int64_t n) = nullptr;
  // y = norm * (x * factor)
  void (*scale_by)(const float* x, const float* norm, float factor, int64_t n, bool round,
                   float* y) = nullptr;
  // out = sum over i of factors[i] * x[i][0 .. n)
  void (*collapse)(const float* x, const float* factors, int copies, int64_t n, bool round,
                   float* out) = nullptr;
  // x[j] = post[j] * v + sum over i of comb[i][j] * x[i]; copies of at most kMaxCopies
  void (*expand)(const float* v, const float* post, const float* comb, int copies, int64_t n,
                 bool round, float* x) = nullptr;
  // a = weight * a * sigmoid(a) * b after the clamps (limit 0: none)
  void (*gate)(float* a, const float* b, float weight, float limit, int64_t n,
               bool round) = nullptr;
  // sum += y
  void (*accumulate)(const float* y, int64_t n, float* sum) = nullptr;
  void (*round_row)(float* x, int64_t n) = nullptr;
};
inline constexpr int kMaxCopies = 8;

struct AttentionKernel {
  size_t (*attend_scratch_bytes)(int heads, int dim) = nullptr;
  void (*attend)(const AttendArgs& args) = nullptr;
  void (*score_keys)(const ScoreArgs& args) = nullptr;
};

struct Kernels {
  const char* target = nullptr;  // Highway's name of it
  ProductKernel product;
  VectorKernel vector;
  AttentionKernel attention;
  TopK top_k = nullptr;
};

// Highway target bits this machine can run, best first; every one of them was compiled.
std::vector<int64_t> supported_targets();
// `target` is one of supported_targets().
Kernels kernels_for(int64_t target);

// The bf16 family, or nullptr where the CPU lacks AVX-512 BF16 or VBMI.
const ProductKernel* bf16_product_kernel();

// Replaces attend by the one with bf16 dot products; only where bf16_product_kernel() exists and
// for bf16 numerics.
void use_bf16_attention(AttentionKernel& kernel);

// Each defined beside its kernels; `target` as above.
ProductKernel f32_product_kernel(int64_t target);
VectorKernel vector_kernel(int64_t target);
AttentionKernel attention_kernel(int64_t target);
TopK top_k_kernel(int64_t target);

}  // namespace peregrine::cpu
