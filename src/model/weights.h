// The weights of a model under the names of the spec, as views into a checkpoint.
//
// Matrices stay in their stored format and place; vectors (norms, sinks, biases) are widened to f32
// once. Binding checks nothing: Checkpoint::open has compared every tensor with the table.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "checkpoint/checkpoint.h"
#include "model/expert_exchange.h"
#include "model/tensor_group.h"

namespace peregrine {

// With tensor parallelism this rank's rows of wq_b, wo_a, wo_b, of the shared expert and so on:
// what TensorSplit::rows says.
struct AttentionWeights {
  int layer = 0;  // as in MoeWeights
  Weight wq_a, wq_b, wkv, wo_a, wo_b;
  const float* q_norm = nullptr;   // [q_lora_rank]
  const float* kv_norm = nullptr;  // [head_dim]
  const float* sinks = nullptr;    // [n_heads], of this rank's heads
  // KV sources only
  Weight compressor_wkv, compressor_wgate;  // wgate: ratio 2
  const float* compressor_norm = nullptr;   // [head_dim]
  Weight index_wk;                          // [index_head_dim, head_dim]
  const float* index_k_norm = nullptr;      // [index_head_dim]
  // index sources only
  Weight index_wq_b;     // [index_n_heads * index_head_dim, q_lora_rank]
  Weight index_weights;  // [index_n_heads, dim]
};

struct MoeWeights {
  Weight gate;  // [experts, dim]
  Router router;
  std::vector<Expert> routed;  // empty where another rank holds the expert
  Expert shared;
  int layer = 0;                       // drafter stages count on behind the last layer
  ExpertExchange* exchange = nullptr;  // null: all experts are here
  TensorGroup* tensors = nullptr;      // null: no tensor parallelism
};

struct EngramWeights {
  EngramTable table;
  Weight wkv;                   // [(n + 1) * dim, columns * width]
  const float* gain = nullptr;  // [n, dim]: q_weight * k_weight
};

struct LayerWeights {
  std::optional<EngramWeights> engram;
  HcWeights hc_attn, hc_ffn;
  const float* attn_norm = nullptr;  // [dim]
  const float* ffn_norm = nullptr;   // [dim]
  AttentionWeights attn;
  MoeWeights moe;
};

struct DrafterWeights {
  Weight main_proj;                  // [dim, taps * dim]
  const float* main_norm = nullptr;  // [dim]
  std::vector<LayerWeights> stages;
  const float* norm = nullptr;       // [dim]
  Weight markov_embed, markov_head;  // [vocab, rank]
  Weight confidence;                 // [1, dim + rank]
};

class Weights {
 public:
  // Binds all tensors of `source` (which must outlive this object) into `backend`'s memory. With
  // `exchange` only the routed experts that it holds, with `tensors` only the rows of this rank.
  Weights(const ModelConfig& config, const TensorSource& source, Backend& backend,
          ExpertExchange* exchange = nullptr, TensorGroup* tensors = nullptr);
  ~Weights();
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  // Binds a routed expert that was left out, of drafter stages too (MoeWeights::layer). Beside
  // steps, by one thread at a time.
  Expert bind_expert(const ModelConfig& config, const TensorSource& source, int layer,
                     int expert) const;
  // "layers.3.ffn.experts.7": the beginning of the names of such an expert's tensors.
  static std::string expert_prefix(const ModelConfig& config, int layer, int expert);

  // The activation type that the stored types imply: f32 for an unquantised f32 checkpoint.
  static Numerics numerics(const TensorSource& source);

  Weight embed, head;           // [vocab, dim]
  const float* norm = nullptr;  // [dim]
  std::vector<LayerWeights> layers;
  std::optional<DrafterWeights> drafter;
  ExpertExchange* const exchange;  // null: all experts are here
  TensorGroup* const tensors;      // null: no tensor parallelism

 private:
  friend class WeightBinder;
  Backend& backend_;
  mutable std::vector<void*> owned_;  // widened vectors, copies of what lay off its alignment
};

}  // namespace peregrine
