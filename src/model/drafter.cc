#include "model/drafter.h"

#include <cassert>

namespace peregrine {

Drafter::Heads::Heads(Backend& backend_in, const ModelConfig& c, int rows) : backend(backend_in) {
  const auto make = [&](int64_t cols, Elem elem) {
    Tensor t{nullptr, rows, cols, elem};
    t.data = backend.allocate(t.bytes());
    return t;
  };
  hidden = make(c.dim, backend.act_elem());
  embedding = make(c.dspark_markov_rank, backend.act_elem());
  bias = make(c.vocab_size, Elem::kF32);
  logits = make(c.vocab_size, Elem::kF32);
  confidence = make(1, Elem::kF32);
  row_numbers = make(1, Elem::kI32).i32();
  tokens = make(1, Elem::kI32).i32();
}

Drafter::Heads::~Heads() {
  backend.synchronize();
  for (void* data : {hidden.data, embedding.data, bias.data, logits.data, confidence.data,
                     static_cast<void*>(row_numbers), static_cast<void*>(tokens)})
    backend.release(data);
}

Drafter::Drafter(Backend& backend, const ModelConfig& config, const Weights& weights,
                 StateStore& state, int max_rows, int max_segments)
    : b_(backend),
      c_(config),
      w_(weights),
      state_(state),
      ws_(backend, config, max_rows, weights.tensors ? &weights.tensors->split() : nullptr),
      block_(backend, config, ws_, weights.tensors),
      rows_(backend, max_rows, 0, 0),
      heads_(backend, config, max_segments) {
  assert(weights.drafter.has_value());
  if (w_.tensors) w_.tensors->made_drafter(max_rows, max_segments);
}

void Drafter::begin(std::span<const DraftSegment> segments) {
  if (w_.tensors) w_.tensors->begins_drafts(segments);
  const DrafterWeights& w = *w_.drafter;
  rows_.clear();
  first_row_.clear();
  std::vector<int32_t> ids;
  for (const DraftSegment& s : segments) {
    first_row_.push_back(rows_.rows());
    ids.assign(static_cast<size_t>(s.count), c_.dspark_noise_token_id);
    ids[0] = s.anchor;
    rows_.append(s.slot, s.position, ids);
  }
  rows_.upload();
  const StepRows& step = rows_.step();
  if (w_.exchange) w_.exchange->open_pass(Pass::kDrafter, /*has_rows=*/true);

  const Tensor x = ws_.x.first(step.rows), pre = ws_.pre.first(step.rows);
  block_.embed(w_.embed, step.token, c_.hc_mult, x);
  b_.copy(ws_.pre_entry.first(step.rows), pre);
  for (size_t s = 0; s < w.stages.size(); ++s) {
    const LayerWeights& stage = w.stages[s];
    const RopeParams rope = block_.window_rope();
    block_.half(x, pre, stage.hc_attn, ws_.mix_attn.first(step.rows), stage.attn_norm, [&] {
      block_.queries_and_window(stage.attn, step, rope);
      block_.attend(stage.attn,
                    {.ring_layer = c_.n_layers + static_cast<int>(s),
                     .mask = AttentionMask::kBlock,
                     .source = -1},
                    step, state_.view());
      block_.output(stage.attn, step, rope);
    });
    block_.half(x, ws_.mix_attn.pre.first(step.rows), stage.hc_ffn, ws_.mix_ffn.first(step.rows),
                stage.ffn_norm, [&] { block_.experts(stage.moe, step); });
    b_.copy(ws_.mix_ffn.pre.first(step.rows), pre);
    if (after_stage) {
      b_.synchronize();
      after_stage(static_cast<int>(s), x);
    }
  }

  hidden_ = ws_.v.first(step.rows);
  b_.hc_collapse(x, pre, hidden_);
  const Tensor u = ws_.u.first(step.rows);
  b_.rms_norm(hidden_, w.norm, u);
  base_logits_ = ws_.logits.first(step.rows);
  block_.linear({.tag = "draft logits", .leader_only = true}, u, w_.head, LinearKind::kFull,
                base_logits_);
}

void Drafter::join_others() {
  if (w_.exchange) join_pass(b_, c_, w_, Pass::kDrafter);
}

void Drafter::next(int i, std::span<const int> active, std::span<const int32_t> previous) {
  if (w_.tensors) w_.tensors->drafts_slot(i, active, previous);
  const DrafterWeights& w = *w_.drafter;
  const auto n = static_cast<int64_t>(active.size());
  std::vector<int32_t> rows;
  rows.reserve(active.size());
  for (const int segment : active) rows.push_back(first_row_[static_cast<size_t>(segment)] + i);
  b_.copy_in(heads_.row_numbers, rows.data(), rows.size() * sizeof(int32_t));
  b_.copy_in(heads_.tokens, previous.data(), previous.size() * sizeof(int32_t));

  const Tensor embedding = heads_.embedding.first(n), bias = heads_.bias.first(n);
  slot_logits_ = heads_.logits.first(n);
  confidence_ = heads_.confidence.first(n);
  block_.embed(w.markov_embed, heads_.tokens, 1, embedding);
  block_.linear({.tag = "draft bias", .leader_only = true}, embedding, w.markov_head,
                LinearKind::kFull, bias);
  b_.gather_rows(base_logits_, heads_.row_numbers, slot_logits_);
  b_.add(bias, slot_logits_);

  const Tensor hidden = heads_.hidden.first(n);
  b_.gather_rows(hidden_, heads_.row_numbers, hidden);
  b_.confidence(hidden, embedding, w.confidence, confidence_);
}

}  // namespace peregrine
