#include "model/block.h"

#include "model/rope_table.h"

namespace peregrine {

Block::Block(Backend& backend, const ModelConfig& config, Workspace& workspace)
    : b_(backend), c_(config), ws_(workspace) {
  const auto upload = [&](const RopeSpec& spec) {
    const auto f = rope_frequencies(spec);
    auto* data = static_cast<float*>(b_.allocate(f.size() * sizeof(float)));
    b_.copy_in(data, f.data(), f.size() * sizeof(float));
    return data;
  };
  window_frequencies_ = upload(peregrine::window_rope(config));
  compressed_frequencies_ = upload(peregrine::compressed_rope(config));
}

Block::~Block() {
  b_.release(window_frequencies_);
  b_.release(compressed_frequencies_);
}

void Block::queries_and_window(const AttentionWeights& w, const StepRows& step,
                               const RopeParams& rope) {
  const Tensor u = ws_.u.first(step.rows), qr = ws_.qr.first(step.rows), q = ws_.q.first(step.rows);
  b_.linear(u, w.wq_a, LinearKind::kQuantised, qr);
  b_.rms_norm(qr, w.q_norm, qr);
  b_.linear(qr, w.wq_b, LinearKind::kQuantised, q);
  b_.rope(q, c_.n_heads, step, rope);
  window_rows(u, w, step, rope);
}

void Block::window_rows(Tensor x, const AttentionWeights& w, const StepRows& step,
                        const RopeParams& rope) {
  const Tensor kv = ws_.kv.first(step.rows);
  b_.linear(x, w.wkv, LinearKind::kQuantised, kv);
  b_.rms_norm(kv, w.kv_norm, kv);
  b_.rope(kv, 1, step, rope);
  b_.pack_window(kv, ws_.packed.first(step.rows));
}

void Block::output(const AttentionWeights& w, const StepRows& step, const RopeParams& rope) {
  const Tensor o = ws_.o.first(step.rows), t = ws_.output_rank.first(step.rows);
  RopeParams back = rope;
  back.inverse = true;
  b_.rope(o, c_.n_heads, step, back);
  b_.grouped_linear(o, w.wo_a, c_.o_groups, t);
  b_.linear(t, w.wo_b, LinearKind::kQuantised, ws_.v.first(step.rows));
}

void Block::experts(const MoeWeights& w, const StepRows& step) {
  const int64_t rows = step.rows;
  // The router's width differs between backbone and drafter; the buffers hold the larger.
  const Tensor logits{ws_.router_logits.data, rows, w.router.n_experts, Elem::kF32};
  const Tensor ids{ws_.expert_ids.data, rows, w.router.n_active, Elem::kI32};
  const Tensor weights{ws_.expert_weights.data, rows, w.router.n_active, Elem::kF32};
  b_.linear(ws_.u.first(rows), w.gate, LinearKind::kFull, logits);
  b_.route(logits, w.router, step.is_image, ids, weights);
  const ExpertsArgs args{.u = ws_.u.first(rows),
                         .ids = ids,
                         .weights = weights,
                         .routed = w.routed,
                         .shared = &w.shared,
                         .out = ws_.v.first(rows)};
  if (w.exchange) {
    w.exchange->experts(b_, w.layer, args);
  } else {
    b_.experts(args);
  }
}

}  // namespace peregrine
