#include "backend/cuda/cuda_backend.h"

#include <algorithm>

#include "backend/cuda/attention.h"
#include "backend/cuda/compressor.h"
#include "backend/cuda/elementwise.h"
#include "backend/cuda/engram.h"
#include "backend/cuda/expert_lists.h"
#include "backend/cuda/experts.h"
#include "backend/cuda/hyper_connections.h"
#include "backend/cuda/indexer.h"
#include "backend/cuda/linear.h"
#include "backend/cuda/norm.h"
#include "backend/cuda/rope.h"
#include "backend/cuda/window.h"
#include "base/fail.h"

namespace peregrine {

using cuda::check;

CudaBackend::CudaBackend(const ModelConfig& config, Numerics numerics, double memory_fraction)
    : config_(config), numerics_(numerics) {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess || devices == 0) {
    cudaGetLastError();
    fail(ErrorKind::kInvalidArgument, "device 'cuda' needs an NVIDIA GPU and its driver: {}",
         status == cudaSuccess ? "no device was found" : cudaGetErrorString(status));
  }
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "asking for the device's properties");
  if (properties.major < 9)
    fail(ErrorKind::kInvalidArgument,
         "device 'cuda': {} has compute capability {}.{}, but the kernels need 9.0 or later",
         properties.name, properties.major, properties.minor);
  const int experts = std::max(config.n_routed_experts, config.dspark_n_routed_experts);
  const int active = std::max(config.n_activated_experts, config.dspark_n_activated_experts);
  if (experts >= cuda::kMaxExperts || active > cuda::kMaxActive)
    fail(ErrorKind::kInvalidArgument,
         "device 'cuda' supports up to {} routed experts of which {} are active, the model has {} "
         "and {}",
         cuda::kMaxExperts - 1, cuda::kMaxActive, experts, active);
  device_name_ = properties.name;
  multiprocessors_ = properties.multiProcessorCount;
  budget_ = static_cast<size_t>(memory_fraction * static_cast<double>(properties.totalGlobalMem));
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
  scratch_ = std::make_unique<cuda::Scratch>(stream_);
  uploads_ = std::make_unique<cuda::UploadRing>(stream_);
  expert_tables_ = std::make_unique<cuda::ExpertTables>(stream_);
  graphs_ = std::make_unique<cuda::StepGraphs>(stream_, *scratch_);
}

CudaBackend::~CudaBackend() {
  cudaStreamSynchronize(stream_);
  graphs_.reset();
  expert_tables_.reset();
  uploads_.reset();
  scratch_.reset();
  for (const auto& [data, bytes] : buffers_) cudaFree(data);
  for (void* data : owned_weights_) cudaFree(data);
  for (void* range : pinned_) cudaHostUnregister(range);
  cudaStreamDestroy(stream_);
}

std::string CudaBackend::name() const { return "cuda (" + device_name_ + ")"; }

// -- operations: each is one function of the subject's header ------------------------------------

void CudaBackend::embed(const Weight& table, const int32_t* tokens, int copies, Tensor x) {
  cuda::embed(launch(), table, tokens, copies, x);
}
void CudaBackend::gather_rows(Tensor src, const int32_t* indices, Tensor dst) {
  cuda::gather_rows(launch(), src, indices, dst);
}
void CudaBackend::engram_gather(const EngramTable& table, const int64_t* row_ids, int columns,
                                Tensor out) {
  cuda::engram_gather(launch(), table, row_ids, columns, out);
}
void CudaBackend::engram_mix(const EngramMixArgs& args) { cuda::engram_mix(launch(), args); }
void CudaBackend::hc_mixes(Tensor x, const HcWeights& weights, HcMix mix) {
  cuda::hc_mixes(launch(), x, weights, mix);
}
void CudaBackend::hc_collapse_norm(Tensor x, Tensor pre, const float* norm, Tensor u) {
  cuda::hc_collapse_norm(launch(), x, pre, norm, u);
}
void CudaBackend::hc_collapse(Tensor x, Tensor pre, Tensor out) {
  cuda::hc_collapse(launch(), x, pre, out);
}
void CudaBackend::hc_expand(Tensor v, Tensor post, Tensor comb, Tensor x) {
  cuda::hc_expand(launch(), v, post, comb, x);
}
void CudaBackend::hc_tap(Tensor x, int64_t column, Tensor out) {
  cuda::hc_tap(launch(), x, column, out);
}
void CudaBackend::linear(Tensor x, const Weight& w, LinearKind kind, Tensor y) {
  cuda::linear(launch(), x, w, kind, y);
}
void CudaBackend::grouped_linear(Tensor x, const Weight& w, int groups, Tensor y) {
  cuda::grouped_linear(launch(), x, w, groups, y);
}
void CudaBackend::rms_norm(Tensor x, const float* norm, Tensor y) {
  cuda::rms_norm(launch(), x, norm, y);
}
void CudaBackend::rope(Tensor x, int heads, const StepRows& step, const RopeParams& params) {
  cuda::rope(launch(), x, heads, step, params);
}
void CudaBackend::scale(Tensor x, float factor) { cuda::scale(launch(), x, factor); }
void CudaBackend::add(Tensor x, Tensor y) { cuda::add(launch(), x, y); }
void CudaBackend::gate(Tensor a, Tensor b) { cuda::gate(launch(), a, b); }
void CudaBackend::pack_window(Tensor kv, Tensor packed) { cuda::pack_window(launch(), kv, packed); }
void CudaBackend::store_window(Tensor packed, const StepRows& step, int ring_layer,
                               const KvView& kv) {
  cuda::store_window(launch(), packed, step, ring_layer, kv);
}
void CudaBackend::compress_pairs(Tensor a, Tensor g, const StepRows& step, int source,
                                 const KvView& kv, Tensor latent) {
  cuda::compress_pairs(launch(), a, g, step, source, kv, latent);
}
void CudaBackend::store_compressed(Tensor latent, const StepRows& step, int source, int ratio,
                                   const KvView& kv) {
  cuda::store_compressed(launch(), latent, step, source, ratio, kv);
}
void CudaBackend::store_index_keys(Tensor keys, const StepRows& step, int source, int ratio,
                                   const KvView& kv) {
  cuda::store_index_keys(launch(), keys, step, source, ratio, kv);
}
void CudaBackend::index_select(const IndexArgs& args, const StepRows& step, const KvView& kv) {
  cuda::index_select(launch(), args, step, kv);
}
void CudaBackend::sparse_attention(const AttentionArgs& args, const StepRows& step,
                                   const KvView& kv) {
  cuda::sparse_attention(launch(), args, step, kv);
}
void CudaBackend::route(Tensor logits, const Router& router, const uint8_t* is_image, Tensor ids,
                        Tensor weights) {
  cuda::route(launch(), logits, router, is_image, ids, weights);
}
void CudaBackend::experts(const ExpertsArgs& args) {
  cuda::experts(launch(), args, expert_tables_->get(args.routed, args.shared));
}
void CudaBackend::confidence(Tensor x, Tensor e, const Weight& proj, Tensor out) {
  cuda::confidence(launch(), x, e, proj, out);
}

}  // namespace peregrine
