#include "model/workspace.h"

#include <algorithm>

namespace peregrine {

Workspace::Workspace(Backend& backend, const ModelConfig& c, int max_rows, const TensorSplit* split)
    : backend_(backend), rows_(max_rows) {
  const Elem act = backend.act_elem();
  const int64_t n = c.hc_mult, d = c.dim, head = c.head_dim;
  x = make(n * d, act);
  x_decoder = make(n * d, act);
  pre = make(n, Elem::kF32);
  pre_decoder = make(n, Elem::kF32);
  pre_entry = make(n, Elem::kF32);
  std::vector<float> entry(static_cast<size_t>(max_rows * n), 0.0f);
  for (size_t row = 0; row < static_cast<size_t>(max_rows); ++row)
    entry[row * static_cast<size_t>(n)] = 1;
  backend.copy_in(pre_entry.data, entry.data(), entry.size() * sizeof(float));
  for (HcMix* mix : {&mix_attn, &mix_ffn})
    *mix = {make(n, Elem::kF32), make(n, Elem::kF32), make(n * n, Elem::kF32)};
  u = make(d, act);
  v = make(d, act);
  qr = make(c.q_lora_rank, act);
  q = make(c.n_heads * head, act);
  o = make(c.n_heads * head, act);
  kv = make(head, act);
  packed = make(head + head / 32, Elem::kU8);
  output_rank = make(static_cast<int64_t>(c.o_groups) * c.o_lora_rank, act);
  pair_a = make(head, Elem::kF32);
  pair_g = make(head, Elem::kF32);
  latent = make(head, act);
  index_key = make(c.index_head_dim, act);
  index_q = make(static_cast<int64_t>(c.index_n_heads) * c.index_head_dim, act);
  index_weights = make(c.index_n_heads, act);
  const auto selection = [&](int capacity) {
    return Selection{make(capacity, Elem::kI32).i32(), make(1, Elem::kI32).i32(), capacity};
  };
  selected = selection(c.index_topk);
  candidates = selection(std::max(1, c.candidate_topk_blocks));
  router_logits = make(std::max(c.n_routed_experts, c.dspark_n_routed_experts), Elem::kF32);
  const int active = std::max(c.n_activated_experts, c.dspark_n_activated_experts);
  expert_ids = make(active, Elem::kI32);
  expert_weights = make(active, Elem::kF32);
  if (c.has_engram()) {
    engram_rows = make(
        static_cast<int64_t>(c.engram_max_ngram - 1) * c.engram_n_heads * c.engram_head_dim, act);
    engram_kv = make((n + 1) * d, act);
  }
  if (c.has_drafter()) {
    taps = make(static_cast<int64_t>(c.dspark_target_layer_ids.size()) * d, act);
    main_x = make(d, act);
  }
  x_exit = make(n * d, act);
  pre_exit = make(n, Elem::kF32);
  logits = make(c.vocab_size, Elem::kF32);
  gather = make(1, Elem::kI32).i32();
  if (split) {
    int64_t widest = split->groups(c).size() * c.o_lora_rank;
    for (const int64_t cols : {int64_t{c.vocab_size}, (n + 1) * d})
      widest = std::max(widest, split->share(cols, kSplitRows).size());
    if (c.has_engram())
      widest = std::max(widest, split->engram_columns(c).size() * c.engram_head_dim);
    part = make(widest, Elem::kF32);
  }
}

Workspace::~Workspace() {
  backend_.synchronize();
  for (void* data : owned_) backend_.release(data);
}

size_t Workspace::bytes_per_row(const ModelConfig& c) {
  // The wide ones, four bytes a value as on a CPU; logits and exit rows are touched only where
  // asked.
  const int64_t values = 2 * static_cast<int64_t>(c.hc_mult) * c.dim + 2 * c.dim +
                         2 * static_cast<int64_t>(c.n_heads) * c.head_dim + c.q_lora_rank +
                         static_cast<int64_t>(c.o_groups) * c.o_lora_rank + 5 * c.head_dim +
                         static_cast<int64_t>(c.index_n_heads) * c.index_head_dim + c.index_topk +
                         c.candidate_topk_blocks + c.n_routed_experts +
                         (c.has_engram() ? (c.hc_mult + 1) * static_cast<int64_t>(c.dim) +
                                               static_cast<int64_t>(c.engram_max_ngram - 1) *
                                                   c.engram_n_heads * c.engram_head_dim
                                         : 0) +
                         static_cast<int64_t>(c.dspark_target_layer_ids.size() + 1) * c.dim;
  return static_cast<size_t>(values) * 4;
}

Tensor Workspace::make(int64_t cols, Elem elem) {
  Tensor t{nullptr, rows_, cols, elem};
  t.data = backend_.allocate(std::max<size_t>(t.bytes(), 1));
  owned_.push_back(t.data);
  return t;
}

}  // namespace peregrine
