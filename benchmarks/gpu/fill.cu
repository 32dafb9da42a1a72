#include "fill.h"

namespace peregrine::bench {
namespace {

__device__ uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

__global__ void fill_kernel(uint64_t* words, size_t n, uint64_t seed, uint64_t keep, uint64_t set) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<size_t>(gridDim.x) * blockDim.x)
    words[i] = (mix(seed + i * 0x9E3779B97F4A7C15u) & keep) | set;
}

__global__ void fill_rows_kernel(uint8_t* rows, size_t n, int codes, int scales, uint8_t keep,
                                 uint8_t set, uint8_t code_keep) {
  const size_t width = static_cast<size_t>(codes + scales);
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n * width;
       i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    const auto random = static_cast<uint8_t>(mix(i * 0x9E3779B97F4A7C15u));
    rows[i] = static_cast<int>(i % width) < codes ? random & code_keep
                                                  : static_cast<uint8_t>((random & keep) | set);
  }
}

}  // namespace

void fill(cudaStream_t stream, void* data, size_t bytes, uint64_t seed, uint64_t keep,
          uint64_t set) {
  fill_kernel<<<1024, 256, 0, stream>>>(static_cast<uint64_t*>(data), bytes / 8, seed, keep, set);
}

void fill_rows(cudaStream_t stream, uint8_t* rows, size_t n, int codes, int scales, uint8_t keep,
               uint8_t set, uint8_t code_keep) {
  fill_rows_kernel<<<1024, 256, 0, stream>>>(rows, n, codes, scales, keep, set, code_keep);
}

}  // namespace peregrine::bench
