// Programmatic dependent launch: a kernel may start while its predecessor still runs, load what no
// kernel writes (weights), and then wait.
//
// Every kernel started with start() calls grid_wait() in every block before it touches memory that
// other kernels write or read, also before leaving early; the chain of waits is what orders kernels
// that are not neighbours.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "backend/cuda/launch.h"

namespace peregrine::cuda {

// Returns when all kernels before this one are complete and their writes visible.
__device__ inline void grid_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// Lets the next kernel start; its own grid_wait still waits for this kernel's end.
__device__ inline void grid_launch() { asm volatile("griddepcontrol.launch_dependents;"); }

template <typename... Parameters, typename... Args>
void start(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
           cudaStream_t stream, Args&&... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...), "starting a kernel");
}

}  // namespace peregrine::cuda
