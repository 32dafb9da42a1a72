// Tensor parallelism on GPUs: as RankTensors, with the ranks' shares put together over NCCL on
// device buffers. Orders of the leader still travel over the host.
//
// Compiled, not run on two GPUs.
//
// Nothing waits for the host inside a step once the buffers have grown to the largest one. For that
// every pair of a row and an expert is computed on every rank, with weight 0 on those that do not
// hold the expert.
//
// Works on the cuda backend; another is refused.
#pragma once

#include <memory>

#include "parallel/nccl_communicator.h"
#include "parallel/rank_tensors.h"

namespace peregrine {

class NcclTensors : public RankTensors {
 public:
  explicit NcclTensors(std::unique_ptr<Communicator> communicator);
  ~NcclTensors() override;

  void gather(Backend& backend, const GatherArgs& args) override;
  void embed(Backend& backend, const Weight& table, int64_t whole_rows, const int32_t* tokens,
             int copies, Tensor x) override;
  void experts(Backend& backend, int layer, const ExpertsArgs& args) override;

 private:
  // Device memory that grows.
  class Buffer {
   public:
    ~Buffer();
    void* reserve(size_t bytes, cudaStream_t stream);

   private:
    void* data_ = nullptr;
    size_t bytes_ = 0;
  };

  // Meets the other ranks at the first call.
  NcclCommunicator& nccl(Backend& backend);
  // The blocks of all ranks, `bytes` each, in rank order.
  void* all_blocks(const void* mine, size_t bytes);
  template <typename T>
  T* room(Buffer& buffer, int64_t values) {
    return static_cast<T*>(buffer.reserve(static_cast<size_t>(values) * sizeof(T), stream_));
  }
  Tensor act_rows(Buffer& buffer, int64_t rows, int64_t cols, Elem elem);

  cudaStream_t stream_ = nullptr;
  std::unique_ptr<NcclCommunicator> nccl_;
  Buffer block_, gathered_;                           // sent, and received of all ranks
  Buffer local_tokens_, places_, embeddings_;         // of embed()
  Buffer gate_, up_, hidden_, shared_part_, shared_;  // the shared expert
  Buffer pair_rows_of_, pair_ids_, pair_weights_, pair_inputs_, pair_results_;
};

}  // namespace peregrine
