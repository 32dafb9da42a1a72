// RMS norm of the CUDA backend (spec: model.md section 4).
#pragma once

#include "backend/cuda/launch.h"

namespace peregrine::cuda {

// x and y may be the same tensor.
void rms_norm(const Launch& launch, Tensor x, const float* norm, Tensor y);

}  // namespace peregrine::cuda
