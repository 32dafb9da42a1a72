#include "backend/cuda/launch.h"
#include "parallel/nccl_sum.h"

namespace peregrine {
namespace {

constexpr int kThreads = 256;

__global__ void sum_kernel(const float* all, int ranks, size_t count, float* out) {
  const size_t i = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  float sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += all[static_cast<size_t>(rank) * count + i];
  out[i] = sum;
}

}  // namespace

void sum_in_rank_order(const float* all, int ranks, size_t count, float* out, cudaStream_t stream) {
  if (count == 0) return;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  sum_kernel<<<blocks, kThreads, 0, stream>>>(all, ranks, count, out);
  cuda::check_launch("sum in rank order");
}

}  // namespace peregrine
