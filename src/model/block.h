// Pieces of a transformer block that backbone layers and drafter stages share
// (spec: model.md 5.3, 5.4, 5.10, 5.11).
#pragma once

#include "backend/backend.h"
#include "checkpoint/config.h"
#include "model/weights.h"
#include "model/workspace.h"

namespace peregrine {

class Block {
 public:
  // With `tensors` the weights hold one rank's rows, and results are put together over the ranks.
  Block(Backend& backend, const ModelConfig& config, Workspace& workspace, TensorGroup* tensors);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // One half around `body`, which turns ws.u into ws.v: mixes, collapse with the incoming weights
  // and norm, body, expand. `pre` comes from the half before; `mix.pre` goes to the next.
  template <typename Body>
  void half(Tensor x, Tensor pre, const HcWeights& hc, HcMix mix, const float* norm, Body body) {
    const int64_t rows = x.rows;
    b_.hc_mixes(x, hc, mix);
    b_.hc_collapse_norm(x, pre, norm, ws_.u.first(rows));
    body();
    b_.hc_expand(ws_.v.first(rows), mix.post, mix.comb, x);
  }

  // y = x . w^T, all columns of y: other ranks may hold rows of w.
  struct LinearName {
    const char* tag = "";
    int layer = -1;
    bool leader_only = false;  // as in GatherArgs
  };
  void linear(const LinearName& name, Tensor x, const Weight& w, LinearKind kind, Tensor y);
  // As Backend::embed, of a table with a row a token of the vocabulary.
  void embed(const Weight& table, const int32_t* tokens, int copies, Tensor x);
  // As Backend::engram_gather, of all columns.
  void engram_gather(int layer, const EngramTable& table, const int64_t* row_ids, int columns,
                     Tensor out);

  // ws.u -> ws.qr, ws.q (rotated), ws.packed (this step's window rows).
  void queries_and_window(const AttentionWeights& w, const StepRows& step, const RopeParams& rope);
  // kv = rmsnorm(QL(x, wkv)), rotated and packed into ws.packed: the window rows of x.
  void window_rows(Tensor x, const AttentionWeights& w, const StepRows& step,
                   const RopeParams& rope);
  // ws.q, ws.packed -> ws.o, of the heads that are here. `args` without q, window, sinks and out.
  void attend(const AttentionWeights& w, AttentionArgs args, const StepRows& step,
              const KvView& kv);
  // ws.o -> ws.v: inverse rotation and both output products.
  void output(const AttentionWeights& w, const StepRows& step, const RopeParams& rope);
  // ws.u -> ws.v: router, chosen experts, shared expert.
  void experts(const MoeWeights& w, const StepRows& step);

  RopeParams window_rope() const {
    return {.frequencies = window_frequencies_, .rope_dim = c_.rope_head_dim};
  }
  RopeParams compressed_rope() const {
    return {.frequencies = compressed_frequencies_, .rope_dim = c_.rope_head_dim};
  }
  RopeParams rope_of(int layer) const {
    return c_.ratio(layer) > 0 ? compressed_rope() : window_rope();
  }

 private:
  int heads_of(const AttentionWeights& w) const {
    return static_cast<int>(w.wq_b.out) / c_.head_dim;
  }
  // Room for this rank's columns of `whole`.
  Tensor part_of(Tensor whole, int64_t cols) const {
    return {ws_.part.data, whole.rows, cols, whole.elem};
  }

  Backend& b_;
  const ModelConfig& c_;
  Workspace& ws_;
  TensorGroup* const tensors_;  // null: everything is here
  float* window_frequencies_ = nullptr;
  float* compressed_frequencies_ = nullptr;
};

}  // namespace peregrine
