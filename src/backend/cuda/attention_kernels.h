// The two implementations of sparse attention that attention.cc chooses from.
#pragma once

#include "backend/cuda/launch.h"

namespace peregrine::cuda {

// On tensor cores; false, and nothing done, where shapes or numerics are not theirs.
bool attend_with_tiles(const Launch& launch, const AttentionArgs& args, const StepRows& step,
                       const KvView& kv);

// f32 products for every shape: unquantised checkpoints and head dimensions only tests have.
void attend_plainly(const Launch& launch, const AttentionArgs& args, const StepRows& step,
                    const KvView& kv);

}  // namespace peregrine::cuda
