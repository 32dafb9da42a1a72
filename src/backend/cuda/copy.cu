#include "backend/cuda/copy.h"

#include "backend/cuda/pdl.cuh"

namespace peregrine::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void copy_kernel(const uint4* src, uint4* dst, size_t n) {
  const size_t i = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
  grid_wait();
  grid_launch();
  if (i < n) dst[i] = src[i];
}

}  // namespace

void copy_lines(cudaStream_t stream, const void* src, void* dst, size_t bytes) {
  const size_t n = bytes / 16;
  start(copy_kernel, dim3(static_cast<unsigned>((n + kThreads - 1) / kThreads)), dim3(kThreads), 0,
        stream, static_cast<const uint4*>(src), static_cast<uint4*>(dst), n);
}

}  // namespace peregrine::cuda
