// Activation buffers of a forward pass, allocated once for a number of rows.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "checkpoint/config.h"
#include "model/tensor_split.h"

namespace peregrine {

class Workspace {
 public:
  // With `split` also room for a rank's columns of what ranks put together.
  Workspace(Backend& backend, const ModelConfig& config, int max_rows,
            const TensorSplit* split = nullptr);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  // Bytes a row costs, to choose a chunk size for a memory budget.
  static size_t bytes_per_row(const ModelConfig& config);

  // Widths: d = dim, n = hc_mult, H heads of D, see model.md.
  Tensor x;                 // act [n * d], the stream
  Tensor x_decoder;         // act [n * d], rows of the decoder half when they differ
  Tensor pre, pre_decoder;  // f32 [n], collapse weights handed from half to half
  Tensor pre_entry;         // f32 [n], constant (1, 0, 0, ...): the first half reads copy 0 alone
  HcMix mix_attn, mix_ffn;
  Tensor u, v;            // act [d], input and output of a half
  Tensor qr;              // act [q_lora_rank]
  Tensor q, o;            // act [H * D]
  Tensor kv;              // act [D]
  Tensor packed;          // u8 [window row bytes]
  Tensor output_rank;     // act [o_groups * o_lora_rank]
  Tensor pair_a, pair_g;  // f32 [D], ratio-2 compressor
  Tensor latent;          // act [D]
  Tensor index_key;       // act [index_head_dim]
  Tensor index_q;         // act [index_n_heads * index_head_dim]
  Tensor index_weights;   // act [index_n_heads]
  Selection selected, candidates;
  Tensor router_logits;       // f32 [max experts]
  Tensor expert_ids;          // i32 [max active]
  Tensor expert_weights;      // f32 [max active]
  Tensor engram_rows;         // act [columns * width]
  Tensor engram_kv;           // act [(n + 1) * d]
  Tensor taps;                // act [targets * d]
  Tensor main_x;              // act [d], drafter input
  Tensor x_exit;              // act [n * d], rows whose logits are wanted
  Tensor pre_exit;            // f32 [n]
  Tensor logits;              // f32 [vocab]
  Tensor part;                // f32 [widest share of a rank]; empty on one rank
  int32_t* gather = nullptr;  // [max_rows] scratch row numbers

 private:
  Tensor make(int64_t cols, Elem elem);

  Backend& backend_;
  int64_t rows_;
  std::vector<void*> owned_;
};

}  // namespace peregrine
