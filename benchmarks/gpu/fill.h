// Random bytes in device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace peregrine::bench {

// Words of 8 bytes: (random & keep) | set. The tail of an odd length is left as it is.
void fill(cudaStream_t stream, void* data, size_t bytes, uint64_t seed, uint64_t keep,
          uint64_t set);

// Rows of `codes` random bytes followed by `scales` bytes of the form (random & keep) | set.
void fill_rows(cudaStream_t stream, uint8_t* rows, size_t n, int codes, int scales, uint8_t keep,
               uint8_t set, uint8_t code_keep);

}  // namespace peregrine::bench
