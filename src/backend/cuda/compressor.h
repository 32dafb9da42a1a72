// Compressed rows and index keys of the CUDA backend (spec: model.md 5.5).
#pragma once

#include "backend/cuda/launch.h"

namespace peregrine::cuda {

void compress_pairs(const Launch& launch, Tensor a, Tensor g, const StepRows& step, int source,
                    const KvView& kv, Tensor latent);
void store_compressed(const Launch& launch, Tensor latent, const StepRows& step, int source,
                      int ratio, const KvView& kv);
void store_index_keys(const Launch& launch, Tensor keys, const StepRows& step, int source,
                      int ratio, const KvView& kv);

}  // namespace peregrine::cuda
