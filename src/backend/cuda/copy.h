// Copies between device buffers as a kernel, which unlike a copy node of a graph lets its
// neighbours overlap with it.
#pragma once

#include "backend/cuda/launch.h"

namespace peregrine::cuda {

// `bytes` a multiple of 16, both addresses aligned to 16.
void copy_lines(cudaStream_t stream, const void* src, void* dst, size_t bytes);

}  // namespace peregrine::cuda
