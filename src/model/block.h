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
  Block(Backend& backend, const ModelConfig& config, Workspace& workspace);
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

  // ws.u -> ws.qr, ws.q (rotated), ws.packed (this step's window rows).
  void queries_and_window(const AttentionWeights& w, const StepRows& step, const RopeParams& rope);
  // kv = rmsnorm(QL(x, wkv)), rotated and packed into ws.packed: the window rows of x.
  void window_rows(Tensor x, const AttentionWeights& w, const StepRows& step,
                   const RopeParams& rope);
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
  Backend& b_;
  const ModelConfig& c_;
  Workspace& ws_;
  float* window_frequencies_ = nullptr;
  float* compressed_frequencies_ = nullptr;
};

}  // namespace peregrine
