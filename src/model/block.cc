#include "model/block.h"

#include "model/rope_table.h"

namespace peregrine {

Block::Block(Backend& backend, const ModelConfig& config, Workspace& workspace,
             TensorGroup* tensors)
    : b_(backend), c_(config), ws_(workspace), tensors_(tensors) {
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

void Block::linear(const LinearName& name, Tensor x, const Weight& w, LinearKind kind, Tensor y) {
  if (!tensors_) return b_.linear(x, w, kind, y);
  const Tensor mine = part_of(y, w.out);
  if (w.out > 0) b_.linear(x, w, kind, mine);
  tensors_->gather(b_, {.tag = name.tag,
                        .layer = name.layer,
                        .mine = mine,
                        .whole = y,
                        .unit = kSplitRows,
                        .full = kind == LinearKind::kFull,
                        .leader_only = name.leader_only});
}

void Block::embed(const Weight& table, const int32_t* tokens, int copies, Tensor x) {
  if (!tensors_) return b_.embed(table, tokens, copies, x);
  tensors_->embed(b_, table, c_.vocab_size, tokens, copies, x);
}

void Block::engram_gather(int layer, const EngramTable& table, const int64_t* row_ids, int columns,
                          Tensor out) {
  if (!tensors_) return b_.engram_gather(table, row_ids, columns, out);
  const Tensor mine = part_of(out, int64_t{columns} * table.width);
  if (columns > 0) b_.engram_gather(table, row_ids, columns, mine);
  tensors_->gather(
      b_, {.tag = "engram", .layer = layer, .mine = mine, .whole = out, .unit = table.width});
}

void Block::queries_and_window(const AttentionWeights& w, const StepRows& step,
                               const RopeParams& rope) {
  const Tensor u = ws_.u.first(step.rows), qr = ws_.qr.first(step.rows);
  b_.linear(u, w.wq_a, LinearKind::kQuantised, qr);
  b_.rms_norm(qr, w.q_norm, qr);
  if (const int heads = heads_of(w); heads > 0) {
    const Tensor q{ws_.q.data, step.rows, w.wq_b.out, ws_.q.elem};
    b_.linear(qr, w.wq_b, LinearKind::kQuantised, q);
    b_.rope(q, heads, step, rope);
  }
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

void Block::attend(const AttentionWeights& w, AttentionArgs args, const StepRows& step,
                   const KvView& kv) {
  if (w.wq_b.out == 0) return;
  args.q = {ws_.q.data, step.rows, w.wq_b.out, ws_.q.elem};
  args.out = {ws_.o.data, step.rows, w.wq_b.out, ws_.o.elem};
  args.window = ws_.packed.first(step.rows);
  args.sinks = w.sinks;
  b_.sparse_attention(args, step, kv);
}

void Block::output(const AttentionWeights& w, const StepRows& step, const RopeParams& rope) {
  const Tensor t = ws_.output_rank.first(step.rows);
  const Tensor mine = tensors_ ? part_of(t, w.wo_a.out) : t;
  if (const int heads = heads_of(w); heads > 0) {
    const Tensor o{ws_.o.data, step.rows, w.wq_b.out, ws_.o.elem};
    RopeParams back = rope;
    back.inverse = true;
    b_.rope(o, heads, step, back);
    b_.grouped_linear(o, w.wo_a, static_cast<int>(w.wo_a.out) / c_.o_lora_rank, mine);
  }
  if (tensors_)
    tensors_->gather(b_, {.tag = "output groups",
                          .layer = w.layer,
                          .mine = mine,
                          .whole = t,
                          .unit = c_.o_lora_rank});
  linear({.tag = "attention", .layer = w.layer}, t, w.wo_b, LinearKind::kQuantised,
         ws_.v.first(step.rows));
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
  } else if (w.tensors) {
    w.tensors->experts(b_, w.layer, args);
  } else {
    b_.experts(args);
  }
}

}  // namespace peregrine
