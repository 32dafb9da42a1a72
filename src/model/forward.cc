#include "model/forward.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace peregrine {

Forward::Forward(Backend& backend, const ModelConfig& config, const Weights& weights,
                 const EngramHasher* hasher, StateStore& state, int max_rows)
    : b_(backend),
      c_(config),
      w_(weights),
      hasher_(hasher),
      state_(state),
      max_rows_(max_rows),
      ws_(backend, config, max_rows, weights.tensors ? &weights.tensors->split() : nullptr),
      block_(backend, config, ws_, weights.tensors),
      encoder_rows_(backend, max_rows, hasher ? hasher->tables() : 0,
                    hasher ? hasher->columns() : 0),
      decoder_rows_(backend, max_rows, hasher ? hasher->tables() : 0,
                    hasher ? hasher->columns() : 0) {
  assert(!config.has_engram() || hasher != nullptr);
  if (w_.tensors) w_.tensors->made_forward(max_rows);
}

Forward::~Forward() {
  b_.synchronize();
  b_.forget_recorded(this);
}

void Forward::run(const Step& step, bool with_drafter, std::vector<SegmentRows>& where) {
  if (w_.tensors) w_.tensors->runs_step(step, with_drafter);
  place_rows(step, where);
  place_exit_rows(step, where);
  const RowSet& decoder = one_row_set_ ? encoder_rows_ : decoder_rows_;
  taps_ = c_.has_drafter() ? ws_.taps.first(decoder.rows()) : Tensor{};
  logits_ = ws_.logits.first(static_cast<int64_t>(exit_rows_.size()));

  const bool recordable = one_row_set_ && !w_.exchange && !w_.tensors &&
                          encoder_rows_.rows() <= kRecordedRows && !hooks.after_layer &&
                          !hooks.after_selection && !hooks.after_routing;
  if (!recordable) return compute(step, with_drafter);
  const uint64_t shape = static_cast<uint64_t>(encoder_rows_.rows()) << 32 |
                         exit_rows_.size() << 1 | (with_drafter ? 1u : 0u);
  b_.run_recorded({this, shape}, [&] { compute(step, with_drafter); });
}

void Forward::join_others() {
  join_pass(b_, c_, w_, Pass::kEncoder);
  join_pass(b_, c_, w_, Pass::kDecoder);
}

// The operations of a step whose rows are placed. With one row set they depend on the number of
// rows and of wanted logits alone.
void Forward::compute(const Step& step, bool with_drafter) {
  const int split = c_.first_decoder_layer();
  // 5.1: the stream starts as copies of the embedding, collapsed through the first copy.
  const StepRows& encoder = encoder_rows_.step();
  if (w_.exchange) w_.exchange->open_pass(Pass::kEncoder, /*has_rows=*/true);
  Tensor x = ws_.x.first(encoder.rows);
  Tensor pre = ws_.pre.first(encoder.rows);
  block_.embed(w_.embed, encoder.token, c_.hc_mult, x);
  b_.copy(ws_.pre_entry.first(encoder.rows), pre);
  for (int l = 0; l < split; ++l) layer(l, encoder_rows_, x, pre);

  // The decoder's global KV comes from the encoder's output, for every row (prefill.md section 1).
  if (c_.engram_table_of(split) >= 0) engram(split, encoder_rows_, x);
  b_.hc_collapse_norm(x, pre, w_.layers[static_cast<size_t>(split)].attn_norm,
                      ws_.u.first(encoder.rows));
  produce_global(split, encoder);

  const RowSet* rows = &encoder_rows_;
  if (!one_row_set_) {
    enter_decoder(step);
    rows = &decoder_rows_;
    x = ws_.x_decoder.first(rows->rows());
    pre = ws_.pre_decoder.first(rows->rows());
  }
  if (rows->rows() == 0) {
    if (w_.exchange) join_pass(b_, c_, w_, Pass::kDecoder);
  } else {
    if (w_.exchange) w_.exchange->open_pass(Pass::kDecoder, /*has_rows=*/true);
    for (int l = split; l < c_.n_layers; ++l) layer(l, *rows, x, pre);
    if (with_drafter) write_drafter_rings(rows->step());
  }
  exit(x, pre);
}

// Encoder rows are the segments in order; decoder rows the same ones unless a segment runs only
// part of its rows through the decoder.
void Forward::place_rows(const Step& step, std::vector<SegmentRows>& where) {
  where.clear();
  encoder_rows_.clear();
  decoder_rows_.clear();
  one_row_set_ = true;
  int decoder_row = 0, logits_row = 0;
  for (const Segment& s : step.segments) {
    assert(s.count > 0 && s.start + s.count <= static_cast<int64_t>(s.tokens.size()));
    const int decoder_count = static_cast<int>(s.start + s.count - s.decoder_start);
    assert(s.decoder_start >= s.start && s.logits <= decoder_count);
    where.push_back({decoder_row, decoder_count, logits_row});
    decoder_row += decoder_count;
    logits_row += s.logits;
    one_row_set_ =
        one_row_set_ && s.decoder_start == s.start && s.decoder_window_floor == s.window_floor;
  }
  for (const Segment& s : step.segments) encoder_rows_.append(s, s.start, s.window_floor, hasher_);
  encoder_rows_.upload();
  if (one_row_set_) return;
  for (const Segment& s : step.segments)
    if (s.decoder_start < s.start + s.count)
      decoder_rows_.append(s, s.decoder_start, s.decoder_window_floor, hasher_);
  decoder_rows_.upload();
}

// Entry states of the decoder rows, packed together.
void Forward::enter_decoder(const Step& step) {
  int64_t encoder_row = 0, decoder_row = 0;
  for (const Segment& s : step.segments) {
    const int64_t count = s.start + s.count - s.decoder_start;
    const int64_t from = encoder_row + s.decoder_start - s.start;
    if (count > 0) {
      b_.copy(ws_.x.slice(from, count), ws_.x_decoder.slice(decoder_row, count));
      b_.copy(ws_.pre.slice(from, count), ws_.pre_decoder.slice(decoder_row, count));
    }
    encoder_row += s.count;
    decoder_row += count;
  }
}

// 5.2: one layer. `pre` arrives from the previous half and leaves as this layer's.
void Forward::layer(int l, const RowSet& rows, Tensor x, Tensor pre) {
  const LayerWeights& w = w_.layers[static_cast<size_t>(l)];
  const StepRows& step = rows.step();
  const int split = c_.first_decoder_layer();
  // The split layer's Engram has run on all encoder rows.
  if (w.engram && l != split) engram(l, rows, x);
  const auto target =
      std::find(c_.dspark_target_layer_ids.begin(), c_.dspark_target_layer_ids.end(), l);
  if (c_.has_drafter() && target != c_.dspark_target_layer_ids.end())
    b_.hc_tap(x, (target - c_.dspark_target_layer_ids.begin()) * c_.dim, taps_);

  const HcMix mix_attn = ws_.mix_attn.first(step.rows), mix_ffn = ws_.mix_ffn.first(step.rows);
  block_.half(x, pre, w.hc_attn, mix_attn, w.attn_norm, [&] { attention(l, step); });
  block_.half(x, mix_attn.pre, w.hc_ffn, mix_ffn, w.ffn_norm, [&] { block_.experts(w.moe, step); });
  b_.copy(mix_ffn.pre, pre);
  if (hooks.after_routing) {
    b_.synchronize();
    hooks.after_routing(l, {ws_.expert_ids.data, step.rows, w.moe.router.n_active, Elem::kI32});
  }
  if (hooks.after_layer) {
    b_.synchronize();
    hooks.after_layer(l, x, pre);
  }
}

void Forward::engram(int l, const RowSet& rows, Tensor x) {
  const EngramWeights& w = *w_.layers[static_cast<size_t>(l)].engram;
  const Tensor looked_up = ws_.engram_rows.first(x.rows), kv = ws_.engram_kv.first(x.rows);
  block_.engram_gather(l, w.table, rows.engram_rows(c_.engram_table_of(l)), hasher_->columns(),
                       looked_up);
  block_.linear({.tag = "engram keys", .layer = l}, looked_up, w.wkv, LinearKind::kQuantised, kv);
  b_.engram_mix({.x = x, .kv = kv, .gain = w.gain, .is_image = rows.step().is_image});
}

// 5.5: compressed rows and index keys of a KV source, from ws.u.
void Forward::produce_global(int l, const StepRows& step) {
  const AttentionWeights& w = w_.layers[static_cast<size_t>(l)].attn;
  const int source = c_.kv_source_of(l), ratio = c_.ratio(l);
  const KvView& kv = state_.view();
  const Tensor u = ws_.u.first(step.rows), latent = ws_.latent.first(step.rows);
  if (ratio == 1) {
    b_.linear(u, w.compressor_wkv, LinearKind::kPlain, latent);
  } else {
    const Tensor a = ws_.pair_a.first(step.rows), g = ws_.pair_g.first(step.rows);
    b_.linear(u, w.compressor_wkv, LinearKind::kFull, a);
    b_.linear(u, w.compressor_wgate, LinearKind::kFull, g);
    b_.compress_pairs(a, g, step, source, kv, latent);
  }
  b_.rms_norm(latent, w.compressor_norm, latent);

  RopeParams rope = block_.rope_of(l);
  rope.position_step = ratio;
  const Tensor key = ws_.index_key.first(step.rows);
  b_.linear(latent, w.index_wk, LinearKind::kPlain, key);
  b_.rms_norm(key, w.index_k_norm, key);
  b_.rope(key, 1, step, rope);
  b_.store_index_keys(key, step, source, ratio, kv);

  b_.rope(latent, 1, step, rope);
  b_.store_compressed(latent, step, source, ratio, kv);
}

// 5.6: which compressed rows each query reads.
void Forward::select(int l, const StepRows& step) {
  const AttentionWeights& w = w_.layers[static_cast<size_t>(l)].attn;
  const Tensor q = ws_.index_q.first(step.rows), weights = ws_.index_weights.first(step.rows);
  b_.linear(ws_.qr.first(step.rows), w.index_wq_b, LinearKind::kQuantised, q);
  b_.rope(q, c_.index_n_heads, step, block_.rope_of(l));
  b_.linear(ws_.u.first(step.rows), w.index_weights, LinearKind::kPlain, weights);
  b_.scale(weights,
           static_cast<float>(1 / std::sqrt(c_.index_head_dim) / std::sqrt(c_.index_n_heads)));
  const int publisher = c_.candidate_source_layer;
  const IndexMode mode = publisher < 0 || l < publisher ? IndexMode::kFull
                         : l == publisher               ? IndexMode::kPublish
                                                        : IndexMode::kReindex;
  const IndexArgs args{.q = q,
                       .weights = weights,
                       .source = c_.kv_source_of(l),
                       .ratio = c_.ratio(l),
                       .mode = mode,
                       .selected = ws_.selected,
                       .candidates = ws_.candidates};
  b_.index_select(args, step, state_.view());
  if (hooks.after_selection) {
    b_.synchronize();
    hooks.after_selection(l, args);
  }
}

// 5.4 to 5.10: ws.u -> ws.v.
void Forward::attention(int l, const StepRows& step) {
  const AttentionWeights& w = w_.layers[static_cast<size_t>(l)].attn;
  const RopeParams rope = block_.rope_of(l);
  block_.queries_and_window(w, step, rope);
  const bool compressed = c_.ratio(l) > 0;
  if (c_.is_kv_source(l) && l != c_.first_decoder_layer()) produce_global(l, step);
  if (c_.is_index_source(l)) select(l, step);
  block_.attend(w,
                {.ring_layer = l,
                 .mask = AttentionMask::kCausal,
                 .source = compressed ? c_.kv_source_of(l) : -1,
                 .selected = ws_.selected},
                step, state_.view());
  b_.store_window(ws_.packed.first(step.rows), step, l, state_.view());
  block_.output(w, step, rope);
}

// Rows whose logits are wanted.
void Forward::place_exit_rows(const Step& step, const std::vector<SegmentRows>& where) {
  exit_rows_.clear();
  for (size_t i = 0; i < step.segments.size(); ++i) {
    const int end = where[i].decoder_row + where[i].decoder_count;
    for (int row = end - step.segments[i].logits; row < end; ++row) exit_rows_.push_back(row);
  }
  b_.copy_in(ws_.gather, exit_rows_.data(), exit_rows_.size() * sizeof(int32_t));
}

// 5.12, for those rows.
void Forward::exit(Tensor x, Tensor pre) {
  const int64_t n = logits_.rows;
  if (n == 0) return;
  const Tensor x_exit = ws_.x_exit.first(n), pre_exit = ws_.pre_exit.first(n), u = ws_.u.first(n);
  b_.gather_rows(x, ws_.gather, x_exit);
  b_.gather_rows(pre, ws_.gather, pre_exit);
  b_.hc_collapse_norm(x_exit, pre_exit, w_.norm, u);
  block_.linear({.tag = "logits", .leader_only = true}, u, w_.head, LinearKind::kFull, logits_);
}

// dspark.md sections 2, 3, 5: the drafter's rings hold backbone positions only. Rows of drafts that
// are rejected later are overwritten before anything can read them.
void Forward::write_drafter_rings(const StepRows& step) {
  const DrafterWeights& w = *w_.drafter;
  const Tensor main_x = ws_.main_x.first(step.rows);
  block_.linear({.tag = "drafter input"}, taps_, w.main_proj, LinearKind::kQuantised, main_x);
  b_.rms_norm(main_x, w.main_norm, main_x);
  for (size_t s = 0; s < w.stages.size(); ++s) {
    block_.window_rows(main_x, w.stages[s].attn, step, block_.window_rope());
    b_.store_window(ws_.packed.first(step.rows), step, c_.n_layers + static_cast<int>(s),
                    state_.view());
  }
}

}  // namespace peregrine
