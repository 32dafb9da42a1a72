// The reference backend: every operation as plain scalar C++, one row at a time, in the order of
// spec/model.md. It is the oracle that the fast backends are compared with; nothing here is
// arranged for speed beyond widening a weight row once for all rows of a step.
//
// Owns the memory it allocates, nothing else. Activations are stored as f32 and rounded to bf16
// where the model says bf16 (Numerics::kBF16) or never (kF32). Every sum runs in ascending order of
// its index in f32. Operations assume what backend.h says about shapes and do not check them.
// A backend may derive from it to inherit the operations that are not worth a second version.
#pragma once

#include <mutex>
#include <string>
#include <unordered_map>

#include "backend/backend.h"
#include "formats/bf16.h"

namespace peregrine {

class ReferenceBackend : public Backend {
 public:
  // Of `config` the operations use head sizes, norm_eps, hc_*, the router and clamp settings, and
  // the indexer's top-k and candidate sizes.
  ReferenceBackend(const ModelConfig& config, Numerics numerics);
  ~ReferenceBackend() override;
  ReferenceBackend(const ReferenceBackend&) = delete;
  ReferenceBackend& operator=(const ReferenceBackend&) = delete;

  std::string name() const override { return "reference"; }
  Numerics numerics() const override { return numerics_; }
  Elem act_elem() const override { return Elem::kF32; }

  // memory.cc
  void* allocate(size_t bytes) override;
  void release(void* data) override;
  const void* adopt_weight(const void* host, size_t bytes) override;
  void copy_in(void* dst, const void* host, size_t bytes) override;
  void copy_out(void* host, const void* src, size_t bytes) override;
  void synchronize() override {}
  void embed(const Weight& table, const int32_t* tokens, int copies, Tensor x) override;
  void gather_rows(Tensor src, const int32_t* indices, Tensor dst) override;
  void copy(Tensor src, Tensor dst) override;

  // engram.cc
  void engram_gather(const EngramTable& table, const int64_t* row_ids, int columns,
                     Tensor out) override;
  void engram_mix(const EngramMixArgs& args) override;

  // hyper_connections.cc
  void hc_mixes(Tensor x, const HcWeights& weights, HcMix mix) override;
  void hc_collapse_norm(Tensor x, Tensor pre, const float* norm, Tensor u) override;
  void hc_collapse(Tensor x, Tensor pre, Tensor out) override;
  void hc_expand(Tensor v, Tensor post, Tensor comb, Tensor x) override;
  void hc_tap(Tensor x, int64_t column, Tensor out) override;

  // linear.cc
  void linear(Tensor x, const Weight& w, LinearKind kind, Tensor y) override;
  void grouped_linear(Tensor x, const Weight& w, int groups, Tensor y) override;
  void confidence(Tensor x, Tensor e, const Weight& proj, Tensor out) override;

  // elementwise.cc
  void rms_norm(Tensor x, const float* norm, Tensor y) override;
  void rope(Tensor x, int heads, const StepRows& step, const RopeParams& params) override;
  void scale(Tensor x, float factor) override;
  void add(Tensor x, Tensor y) override;

  // compressor.cc
  void pack_window(Tensor kv, Tensor packed) override;
  void store_window(Tensor packed, const StepRows& step, int ring_layer, const KvView& kv) override;
  void compress_pairs(Tensor a, Tensor g, const StepRows& step, int source, const KvView& kv,
                      Tensor latent) override;
  void store_compressed(Tensor latent, const StepRows& step, int source, int ratio,
                        const KvView& kv) override;
  void store_index_keys(Tensor keys, const StepRows& step, int source, int ratio,
                        const KvView& kv) override;

  // indexer.cc
  void index_select(const IndexArgs& args, const StepRows& step, const KvView& kv) override;
  // attention.cc
  void sparse_attention(const AttentionArgs& args, const StepRows& step, const KvView& kv) override;

  // experts.cc
  void route(Tensor logits, const Router& router, const uint8_t* is_image, Tensor ids,
             Tensor weights) override;
  void experts(const ExpertsArgs& args) override;
  void gate(Tensor a, Tensor b) override;

 protected:
  const ModelConfig& config() const { return config_; }
  // Rounding of an act value: to bf16 with kBF16, none with kF32.
  float round(float value) const {
    return numerics_ == Numerics::kBF16 ? round_bf16(value) : value;
  }

 private:
  const ModelConfig config_;
  const Numerics numerics_;
  std::mutex allocations_mutex_;
  std::unordered_map<void*, size_t> allocations_;  // address -> bytes
};

}  // namespace peregrine
