// The CUDA backend: every operation as kernels on one stream of one device (spec: model.md, docs:
// cuda.md). Verified on Hopper (sm_90a).
//
// Owns a stream, its device memory, the device copies of adopted weights and recorded graphs. Act
// tensors hold bf16 (Numerics::kBF16) or f32 (kF32). One thread at a time calls operations;
// allocate, release and copies may come from others. Weights are copied to the device once in
// their stored format; a tensor of kHostResidentBytes or more (an Engram table) stays in host
// memory, pinned, and is read by the device row by row.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/expert_tables.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/step_graphs.h"
#include "backend/cuda/upload_ring.h"

namespace peregrine {

class CudaBackend : public Backend {
 public:
  static constexpr size_t kHostResidentBytes = size_t{4} << 30;

  // Throws Error(kInvalidArgument) when the machine has no usable device. May hold at most
  // `memory_fraction` of the device's memory.
  CudaBackend(const ModelConfig& config, Numerics numerics, double memory_fraction);
  ~CudaBackend() override;
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  std::string name() const override;
  Numerics numerics() const override { return numerics_; }
  Elem act_elem() const override { return numerics_ == Numerics::kBF16 ? Elem::kBF16 : Elem::kF32; }

  void* allocate(size_t bytes) override;
  void release(void* data) override;
  const void* adopt_weight(const void* host, size_t bytes) override;
  const void* adopt_scales(std::string_view tensor, const void* host, size_t bytes) override;
  void copy_in(void* dst, const void* host, size_t bytes) override;
  void copy_out(void* host, const void* src, size_t bytes) override;
  void synchronize() override;
  void run_recorded(const RecordKey& key, const std::function<void()>& operations) override {
    graphs_->run(key, operations);
  }
  void forget_recorded(const void* owner) override { graphs_->forget(owner); }

  void embed(const Weight& table, const int32_t* tokens, int copies, Tensor x) override;
  void gather_rows(Tensor src, const int32_t* indices, Tensor dst) override;
  void copy(Tensor src, Tensor dst) override;
  void engram_gather(const EngramTable& table, const int64_t* row_ids, int columns,
                     Tensor out) override;
  void engram_mix(const EngramMixArgs& args) override;
  void hc_mixes(Tensor x, const HcWeights& weights, HcMix mix) override;
  void hc_collapse_norm(Tensor x, Tensor pre, const float* norm, Tensor u) override;
  void hc_collapse(Tensor x, Tensor pre, Tensor out) override;
  void hc_expand(Tensor v, Tensor post, Tensor comb, Tensor x) override;
  void hc_tap(Tensor x, int64_t column, Tensor out) override;
  void linear(Tensor x, const Weight& w, LinearKind kind, Tensor y) override;
  void grouped_linear(Tensor x, const Weight& w, int groups, Tensor y) override;
  void rms_norm(Tensor x, const float* norm, Tensor y) override;
  void rope(Tensor x, int heads, const StepRows& step, const RopeParams& params) override;
  void scale(Tensor x, float factor) override;
  void add(Tensor x, Tensor y) override;
  void pack_window(Tensor kv, Tensor packed) override;
  void store_window(Tensor packed, const StepRows& step, int ring_layer, const KvView& kv) override;
  void compress_pairs(Tensor a, Tensor g, const StepRows& step, int source, const KvView& kv,
                      Tensor latent) override;
  void store_compressed(Tensor latent, const StepRows& step, int source, int ratio,
                        const KvView& kv) override;
  void store_index_keys(Tensor keys, const StepRows& step, int source, int ratio,
                        const KvView& kv) override;
  void index_select(const IndexArgs& args, const StepRows& step, const KvView& kv) override;
  void sparse_attention(const AttentionArgs& args, const StepRows& step, const KvView& kv) override;
  void route(Tensor logits, const Router& router, const uint8_t* is_image, Tensor ids,
             Tensor weights) override;
  void experts(const ExpertsArgs& args) override;
  void gate(Tensor a, Tensor b) override;
  void confidence(Tensor x, Tensor e, const Weight& proj, Tensor out) override;

  cudaStream_t stream() const { return stream_; }

 private:
  cuda::Launch launch() { return {stream_, config_, numerics_, *scratch_, multiprocessors_}; }
  void* device_bytes(size_t bytes, const char* purpose);

  const ModelConfig config_;
  const Numerics numerics_;
  std::string device_name_;
  int multiprocessors_ = 0;
  size_t budget_ = 0;  // bytes this backend may hold
  cudaStream_t stream_ = nullptr;

  mutable std::mutex memory_mutex_;
  std::unordered_map<void*, size_t> buffers_;       // allocate(): address -> bytes
  std::unordered_map<const void*, void*> weights_;  // adopted: host address -> device address
  std::vector<void*> owned_weights_;                // their device copies
  std::vector<void*> pinned_;                       // host ranges registered with the driver
  size_t buffer_bytes_ = 0, weight_bytes_ = 0;

  std::unique_ptr<cuda::Scratch> scratch_;
  std::unique_ptr<cuda::UploadRing> uploads_;
  std::unique_ptr<cuda::ExpertTables> expert_tables_;
  std::unique_ptr<cuda::StepGraphs> graphs_;
};

}  // namespace peregrine
