// Window rows and rings of the CUDA backend (spec: model.md 5.4 and section 7).
#pragma once

#include "backend/cuda/launch.h"

namespace peregrine::cuda {

void pack_window(const Launch& launch, Tensor kv, Tensor packed);
void store_window(const Launch& launch, Tensor packed, const StepRows& step, int ring_layer,
                  const KvView& kv);

}  // namespace peregrine::cuda
