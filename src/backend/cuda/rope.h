// Rotary embedding of the CUDA backend (spec: model.md section 4).
#pragma once

#include "backend/cuda/launch.h"

namespace peregrine::cuda {

void rope(const Launch& launch, Tensor x, int heads, const StepRows& step,
          const RopeParams& params);

}  // namespace peregrine::cuda
