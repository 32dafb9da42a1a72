// Engram of the CUDA backend (spec: engram.md). Tables may lie in host memory that the device
// reads directly.
#pragma once

#include "backend/cuda/launch.h"

namespace peregrine::cuda {

void engram_gather(const Launch& launch, const EngramTable& table, const int64_t* row_ids,
                   int columns, Tensor out);
void engram_mix(const Launch& launch, const EngramMixArgs& args);

}  // namespace peregrine::cuda
