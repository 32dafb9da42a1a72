// The operation interface: everything a step computes, as about twenty fused operations.
//
// model/ calls these in the order of spec/model.md; a backend implements them. Operations are
// ordered as if run one after the other; a backend may queue them (cuda) as long as
// synchronize() and copy_out() wait for all earlier ones. No operation throws, allocates memory
// proportional to the context, or reads results back to the host.
//
// The rule that every backend keeps (design: same bits, whatever the batch): the result for a row
// depends on that row's inputs and its sequence's state alone, never on the number of rows, on
// their order or on the number of threads. Sums therefore have an order fixed by the shape.
//
// Rounding: "act" tensors hold values of the model's activation type. With Numerics::kBF16 every
// operation rounds its act output to bf16 once, at its end; with kF32 (unquantised checkpoints)
// nothing is rounded and quantised linears do not quantise their input.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "backend/tensor.h"
#include "checkpoint/config.h"

namespace peregrine {

enum class Numerics { kBF16, kF32 };

enum class LinearKind {
  kQuantised,  // QL: input to e4m3 per 32 with F8 and F4 weights, act output
  kPlain,      // BL: act input, F8 weights widened, act output
  kFull,       // FL: f32 output, unrounded; the output tensor is f32
};

// Hyper-connection coefficients of one half (spec: model.md 5.3).
struct HcWeights {
  const float* fn = nullptr;     // [(2 + n) * n, n * dim]
  const float* base = nullptr;   // [(2 + n) * n]
  const float* scale = nullptr;  // [3]
};

struct HcMix {
  Tensor pre;   // f32 [rows, n]
  Tensor post;  // f32 [rows, n]
  Tensor comb;  // f32 [rows, n * n], comb[i][j]: source i, destination j

  HcMix first(int64_t rows) const { return {pre.first(rows), post.first(rows), comb.first(rows)}; }
};

// cos/sin come from f32 angles f32(pos) * frequencies[i] (spec: model.md section 4).
struct RopeParams {
  const float* frequencies = nullptr;  // [rope_dim / 2], backend memory
  int rope_dim = 0;
  int position_step = 1;  // rotate by pos / step * step: the first token of a compressed group
  bool inverse = false;
};

struct EngramTable {
  const uint8_t* codes = nullptr;   // e4m3 [rows, width]
  const uint8_t* scales = nullptr;  // e8m0 [rows, width / 32]
  int64_t rows = 0;
  int width = 0;
};

struct EngramMixArgs {
  Tensor x;                           // act [rows, n * dim], updated in place
  Tensor kv;                          // act [rows, (n + 1) * dim]: n keys, then the value
  const float* gain = nullptr;        // [n, dim]: f32 product of q_weight and k_weight
  const uint8_t* is_image = nullptr;  // rows whose gate is 0
};

enum class IndexMode {
  kFull,     // all visible rows
  kPublish,  // all visible rows, and publish the candidate blocks
  kReindex,  // only rows of the published candidate blocks
};

struct IndexArgs {
  Tensor q;        // act [rows, heads * index_head_dim], rotated, not yet fp4
  Tensor weights;  // act [rows, heads], already scaled by (index_head_dim * heads)^-1/2
  int source = 0;  // KV source that owns the keys
  int ratio = 1;   // row j is visible to position p when j < (p + 1) / ratio
  IndexMode mode = IndexMode::kFull;
  Selection selected;    // out: the top index_topk visible rows
  Selection candidates;  // block numbers: out with kPublish, in with kReindex
};

enum class AttentionMask {
  kCausal,  // window positions max(floor, p - W + 1) .. p, of which p0 .. p are step rows
  kBlock,   // drafter: the last W ring positions before the segment and all rows of the segment
};

struct AttentionArgs {
  Tensor q;       // act [rows, heads * head_dim], rotated
  Tensor window;  // u8 [rows, window_row_bytes]: this step's packed window rows
  int ring_layer = 0;
  AttentionMask mask = AttentionMask::kCausal;
  int source = -1;               // KV source of the compressed rows, -1: window only
  Selection selected;            // used when source >= 0
  const float* sinks = nullptr;  // [heads]
  Tensor out;                    // act [rows, heads * head_dim], not yet rotated back
};

struct Router {
  const float* bias = nullptr;        // [experts], selection only
  const float* bias_image = nullptr;  // for image rows, or nullptr
  int n_experts = 0;
  int n_active = 0;
};

struct Expert {
  Weight w1, w2, w3;
};

struct ExpertsArgs {
  Tensor u;                        // act [rows, dim]
  Tensor ids;                      // i32 [rows, active], ascending in each row
  Tensor weights;                  // f32 [rows, active]
  std::span<const Expert> routed;  // host array of views
  const Expert* shared = nullptr;  // added last with weight 1
  Tensor out;                      // act [rows, dim]
};

// Names a fixed sequence of operations on fixed buffers.
struct RecordKey {
  const void* owner = nullptr;  // whose buffers
  uint64_t shape = 0;           // everything that the sequence depends on besides
  auto operator<=>(const RecordKey&) const = default;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string name() const = 0;  // "reference", "cpu (AVX3_DL + bf16, 2 threads)", ...
  // What decides the bits of results, beyond the model: name() without what does not.
  virtual std::string kernels_name() const { return name(); }
  virtual Numerics numerics() const = 0;
  virtual Elem act_elem() const = 0;  // storage of act tensors

  // -- memory ------------------------------------------------------------------------------------
  // Zeroed memory aligned to 256 bytes; throws Error(kOutOfMemory). Host backends reserve lazily:
  // pages never touched cost nothing.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* data) = 0;
  // Makes mapped weight bytes readable for operations: host backends return `host` itself.
  virtual const void* adopt_weight(const void* host, size_t bytes) = 0;
  // The same for the block scales (ue8m0 codes) of a matrix, named `tensor`; throws
  // Error(kBadCheckpoint) for a code that the backend's kernels cannot use.
  virtual const void* adopt_scales(std::string_view tensor, const void* host, size_t bytes) {
    (void)tensor;
    return adopt_weight(host, bytes);
  }
  virtual void copy_in(void* dst, const void* host, size_t bytes) = 0;
  virtual void copy_out(void* host, const void* src, size_t bytes) = 0;
  virtual void synchronize() = 0;

  // Runs `operations`, a fixed sequence: equal keys mean equal calls with equal arguments, only the
  // contents of backend memory differ. It neither allocates nor copies from or to the host. A
  // backend may record the sequence and repeat the recording (cuda).
  virtual void run_recorded(const RecordKey&, const std::function<void()>& operations) {
    operations();
  }
  // The owner's buffers are about to go.
  virtual void forget_recorded(const void*) {}

  // -- entry and exit -----------------------------------------------------------------------------
  // x[r] = `copies` copies of table[tokens[r]] (model.md 5.1).
  virtual void embed(const Weight& table, const int32_t* tokens, int copies, Tensor x) = 0;
  // dst[i] = src[indices[i]]; indices are in backend memory.
  virtual void gather_rows(Tensor src, const int32_t* indices, Tensor dst) = 0;
  // Same bytes, for staging buffers of equal shape and element.
  virtual void copy(Tensor src, Tensor dst) = 0;

  // -- Engram (engram.md) -------------------------------------------------------------------------
  // out[r] = the `columns` dequantised rows row_ids[r][0..columns-1], concatenated.
  virtual void engram_gather(const EngramTable& table, const int64_t* row_ids, int columns,
                             Tensor out) = 0;
  virtual void engram_mix(const EngramMixArgs& args) = 0;

  // -- hyper-connections (model.md 5.3) -----------------------------------------------------------
  virtual void hc_mixes(Tensor x, const HcWeights& weights, HcMix mix) = 0;
  // u = rmsnorm(collapse(x, pre), norm).
  virtual void hc_collapse_norm(Tensor x, Tensor pre, const float* norm, Tensor u) = 0;
  // out = collapse(x, pre), rounded to act (the drafter's confidence input).
  virtual void hc_collapse(Tensor x, Tensor pre, Tensor out) = 0;
  // x[j] = post[j] * v + sum over i of comb[i][j] * x[i], in place.
  virtual void hc_expand(Tensor v, Tensor post, Tensor comb, Tensor x) = 0;
  // out[r][column .. column + dim) = mean over copies (dspark.md section 2).
  virtual void hc_tap(Tensor x, int64_t column, Tensor out) = 0;

  // -- products and norms -------------------------------------------------------------------------
  virtual void linear(Tensor x, const Weight& w, LinearKind kind, Tensor y) = 0;
  // x [rows, groups * in], w [groups * out, in]: y group g = x group g . w group g ^T, kPlain.
  virtual void grouped_linear(Tensor x, const Weight& w, int groups, Tensor y) = 0;
  virtual void rms_norm(Tensor x, const float* norm, Tensor y) = 0;
  // Rotates the last rope_dim dims of every head of x [rows, heads * head_dim] in place.
  virtual void rope(Tensor x, int heads, const StepRows& step, const RopeParams& params) = 0;
  // x = round(x * factor).
  virtual void scale(Tensor x, float factor) = 0;
  // y += x, f32.
  virtual void add(Tensor x, Tensor y) = 0;

  // -- state (model.md 5.4, 5.5, section 7) -------------------------------------------------------
  // act_quant of kv [rows, head_dim] into packed window rows.
  virtual void pack_window(Tensor kv, Tensor packed) = 0;
  // Writes the step's packed rows into the ring; of a long segment only the last ring_rows.
  virtual void store_window(Tensor packed, const StepRows& step, int ring_layer,
                            const KvView& kv) = 0;
  // Ratio 2: pools (a, g) of positions 2j and 2j+1 into latent[r] of the row at 2j+1 and stores
  // the halves of even positions in the tails. Rows that complete no group get zeros.
  virtual void compress_pairs(Tensor a, Tensor g, const StepRows& step, int source,
                              const KvView& kv, Tensor latent) = 0;
  // Packs the rotated latents / index keys of the groups completed by the step into their pages.
  virtual void store_compressed(Tensor latent, const StepRows& step, int source, int ratio,
                                const KvView& kv) = 0;
  virtual void store_index_keys(Tensor keys, const StepRows& step, int source, int ratio,
                                const KvView& kv) = 0;

  // -- attention (model.md 5.6, 5.7, 5.9) ---------------------------------------------------------
  virtual void index_select(const IndexArgs& args, const StepRows& step, const KvView& kv) = 0;
  virtual void sparse_attention(const AttentionArgs& args, const StepRows& step,
                                const KvView& kv) = 0;

  // -- experts (model.md 5.11) --------------------------------------------------------------------
  // Chooses experts from f32 logits [rows, n_experts]; ids ascending, weights to match.
  virtual void route(Tensor logits, const Router& router, const uint8_t* is_image, Tensor ids,
                     Tensor weights) = 0;
  virtual void experts(const ExpertsArgs& args) = 0;
  // a = a * sigmoid(a) * b after the clamps, act: what experts() does between its products, for an
  // expert whose products are shared among ranks.
  virtual void gate(Tensor a, Tensor b) = 0;

  // -- drafter heads (dspark.md section 4) --------------------------------------------------------
  // out[r] = proj . f32([x[r] ; e[r]]), raw.
  virtual void confidence(Tensor x, Tensor e, const Weight& proj, Tensor out) = 0;
};

struct BackendOptions {
  int threads = 0;                   // 0: one a core; ignored by reference
  double gpu_memory_fraction = 0.9;  // share of the device's memory that cuda may hold
};

// `device` is "reference" or "cpu" ("cuda" where built). Throws Error(kInvalidArgument) naming the
// devices this build knows.
std::unique_ptr<Backend> make_backend(const std::string& device, const ModelConfig& config,
                                      Numerics numerics, const BackendOptions& options = {});

}  // namespace peregrine
