// The fast host backend: SIMD kernels over worker threads, weights widened in registers.
//
// Owns its threads and its scratch memory. Scratch grows to what the largest step needs, is bounded
// by the constants of linear.cc and experts.cc (under 32 MB at the released shape with steps of 512
// rows), and never depends on the context, except for the scores of the indexer: 4 bytes a visible
// row for 8 step rows at a time and as much a thread. Operations that cost nothing beside the
// products are inherited from the reference, split over rows where steps may be long.
//
// Results do not depend on the number of threads (kernels.h tells the order of sums). They agree
// with the reference up to the order of f32 sums and the last bit of exp.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/cpu/products.h"
#include "backend/cpu/scratch.h"
#include "backend/reference/reference_backend.h"
#include "base/thread_pool.h"

namespace peregrine {

// For tests of the dispatch; make_backend uses the defaults.
struct CpuTargetOptions {
  std::optional<int64_t> target;  // of cpu::supported_targets(); the best one without
  bool bf16 = true;               // use the bf16 family where the CPU has it
};

class CpuBackend : public ReferenceBackend {
 public:
  // `threads` = 0: one a core.
  CpuBackend(const ModelConfig& config, Numerics numerics, int threads,
             const CpuTargetOptions& options = {});

  std::string name() const override;
  std::string kernels_name() const override;
  int threads() const { return pool_.threads(); }

  // linear.cc
  void linear(Tensor x, const Weight& w, LinearKind kind, Tensor y) override;
  void grouped_linear(Tensor x, const Weight& w, int groups, Tensor y) override;

  // experts.cc
  void experts(const ExpertsArgs& args) override;
  void gate(Tensor a, Tensor b) override;

  // rows.cc
  void hc_mixes(Tensor x, const HcWeights& weights, HcMix mix) override;
  void hc_collapse(Tensor x, Tensor pre, Tensor out) override;
  void hc_collapse_norm(Tensor x, Tensor pre, const float* norm, Tensor u) override;
  void hc_expand(Tensor v, Tensor post, Tensor comb, Tensor x) override;
  void rms_norm(Tensor x, const float* norm, Tensor y) override;
  void rope(Tensor x, int heads, const StepRows& step, const RopeParams& params) override;
  void route(Tensor logits, const Router& router, const uint8_t* is_image, Tensor ids,
             Tensor weights) override;
  void engram_gather(const EngramTable& table, const int64_t* row_ids, int columns,
                     Tensor out) override;
  void engram_mix(const EngramMixArgs& args) override;
  void pack_window(Tensor kv, Tensor packed) override;

  // attention.cc
  void sparse_attention(const AttentionArgs& args, const StepRows& step, const KvView& kv) override;
  // indexer.cc
  void index_select(const IndexArgs& args, const StepRows& step, const KvView& kv) override;

 private:
  struct ExpertWave;

  bool rounds() const { return numerics() == Numerics::kBF16; }
  void multiply_rows(Tensor x, const Weight& w, int groups, LinearKind kind, Tensor y);
  void run_wave(const ExpertsArgs& args, ExpertWave& wave);

  const bool has_bf16_;
  const cpu::Kernels kernels_;
  ThreadPool pool_;
  cpu::Products products_;
  cpu::Scratch input_scratch_;                // prepared inputs
  cpu::Scratch expert_scratch_;               // inner activations and outputs of a wave
  cpu::Scratch score_scratch_;                // index scores
  std::vector<cpu::Scratch> thread_scratch_;  // attention tiles, key tiles, selections
};

}  // namespace peregrine
