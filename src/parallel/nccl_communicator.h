// Collectives between GPUs over NCCL, on device buffers and in a stream's order.
//
// Compiled, not run.
//
// NCCL moves bytes and adds nothing: all_reduce_sum() gathers and then adds in rank order with a
// kernel of its own, so that a result is the same in every run with the same number of ranks,
// whatever ring or tree NCCL picks. Nothing waits for the host. Shapes are not checked on the way,
// unlike in Communicator: ranks that issue different calls hang, which check() does not see; the
// steps themselves are agreed on over a Communicator of the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace peregrine {

class NcclCommunicator {
 public:
  // What the ranks of one communicator share: made by one of them, carried to the others by
  // whatever they have (Communicator::broadcast).
  static std::vector<std::byte> make_id();

  // Meets the other ranks. Works on the current device, in the order of `stream`, which must
  // outlive this object. Throws Error(kUnavailable) in NCCL's words.
  NcclCommunicator(std::span<const std::byte> id, int rank, int ranks, cudaStream_t stream);
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const;
  int ranks() const;

  // Room for sums of up to `values` values; grows nothing later, as recorded steps demand.
  void reserve_sums(size_t values);

  // all[r * bytes ...] = the `bytes` bytes of rank r.
  void all_gather(const void* mine, size_t bytes, void* all);
  // in[r * bytes ...] = the block out[rank * bytes ...] of rank r: every pair of ranks exchanges
  // `bytes` bytes.
  void all_to_all(const void* out, size_t bytes, void* in);
  // values[i] becomes the sum over ranks, added in rank order. At most what reserve_sums() was
  // told.
  void all_reduce_sum(float* values, size_t count);

  // Throws Error(kUnavailable) when NCCL has met an error since, such as a lost peer.
  void check() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace peregrine
