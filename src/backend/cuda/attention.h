// Attention over window and selected rows of the CUDA backend (spec: model.md 5.9).
#pragma once

#include "backend/cuda/launch.h"

namespace peregrine::cuda {

void sparse_attention(const Launch& launch, const AttentionArgs& args, const StepRows& step,
                      const KvView& kv);

}  // namespace peregrine::cuda
