// The sum of gathered values, in rank order.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace peregrine {

// out[i] = all[i] + all[count + i] + ... over `ranks` runs of `count` values, added in that order.
void sum_in_rank_order(const float* all, int ranks, size_t count, float* out, cudaStream_t stream);

}  // namespace peregrine
