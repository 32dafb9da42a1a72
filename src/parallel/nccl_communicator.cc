#include "parallel/nccl_communicator.h"

#include <nccl.h>

#include <cassert>
#include <cstring>
#include <utility>

#include "backend/cuda/launch.h"
#include "base/fail.h"
#include "parallel/nccl_sum.h"

namespace peregrine {
namespace {

void check_nccl(ncclResult_t result, const char* what) {
  if (result != ncclSuccess)
    fail(ErrorKind::kUnavailable, "NCCL: {}: {}", what, ncclGetErrorString(result));
}

}  // namespace

struct NcclCommunicator::Impl {
  ncclComm_t comm = nullptr;
  int rank = 0, ranks = 1;
  cudaStream_t stream = nullptr;
  float* sums = nullptr;  // [ranks * sum_values]
  size_t sum_values = 0;

  ~Impl() {
    if (sums) cudaFree(sums);
    // Not ncclCommDestroy, which waits for peers that may be gone; the caller has synchronised.
    if (comm) ncclCommAbort(comm);
  }
};

std::vector<std::byte> NcclCommunicator::make_id() {
  ncclUniqueId id;
  check_nccl(ncclGetUniqueId(&id), "making an id");
  const auto* bytes = reinterpret_cast<const std::byte*>(&id);
  return {bytes, bytes + sizeof(id)};
}

NcclCommunicator::NcclCommunicator(std::span<const std::byte> id, int rank, int ranks,
                                   cudaStream_t stream)
    : impl_(std::make_unique<Impl>()) {
  ncclUniqueId shared;
  if (id.size() != sizeof(shared))
    fail(ErrorKind::kInvalidArgument, "an NCCL id of {} bytes: expected {}", id.size(),
         sizeof(shared));
  std::memcpy(&shared, id.data(), sizeof(shared));
  impl_->rank = rank;
  impl_->ranks = ranks;
  impl_->stream = stream;
  check_nccl(ncclCommInitRank(&impl_->comm, ranks, shared, rank), "meeting the other ranks");
}

NcclCommunicator::~NcclCommunicator() = default;

int NcclCommunicator::rank() const { return impl_->rank; }
int NcclCommunicator::ranks() const { return impl_->ranks; }

void NcclCommunicator::reserve_sums(size_t values) {
  if (values <= impl_->sum_values) return;
  cuda::check(cudaStreamSynchronize(impl_->stream), "waiting for sums");
  if (impl_->sums) cuda::check(cudaFree(std::exchange(impl_->sums, nullptr)), "freeing sums");
  impl_->sum_values = 0;
  cuda::check(cudaMalloc(&impl_->sums, static_cast<size_t>(impl_->ranks) * values * sizeof(float)),
              "memory for sums over ranks");
  impl_->sum_values = values;
}

void NcclCommunicator::all_gather(const void* mine, size_t bytes, void* all) {
  check_nccl(ncclAllGather(mine, all, bytes, ncclInt8, impl_->comm, impl_->stream), "all-gather");
}

void NcclCommunicator::all_to_all(const void* out, size_t bytes, void* in) {
  check_nccl(ncclGroupStart(), "all-to-all");
  for (int peer = 0; peer < impl_->ranks; ++peer) {
    const size_t at = static_cast<size_t>(peer) * bytes;
    check_nccl(ncclSend(static_cast<const std::byte*>(out) + at, bytes, ncclInt8, peer, impl_->comm,
                        impl_->stream),
               "all-to-all");
    check_nccl(ncclRecv(static_cast<std::byte*>(in) + at, bytes, ncclInt8, peer, impl_->comm,
                        impl_->stream),
               "all-to-all");
  }
  check_nccl(ncclGroupEnd(), "all-to-all");
}

void NcclCommunicator::all_reduce_sum(float* values, size_t count) {
  assert(count <= impl_->sum_values);
  all_gather(values, count * sizeof(float), impl_->sums);
  sum_in_rank_order(impl_->sums, impl_->ranks, count, values, impl_->stream);
}

void NcclCommunicator::check() const {
  ncclResult_t met = ncclSuccess;
  check_nccl(ncclCommGetAsyncError(impl_->comm, &met), "asking for errors");
  check_nccl(met, "a collective");
}

}  // namespace peregrine
