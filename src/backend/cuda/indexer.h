// Choosing the compressed rows a query reads, on the device (spec: model.md 5.6, 5.7).
#pragma once

#include "backend/cuda/launch.h"

namespace peregrine::cuda {

void index_select(const Launch& launch, const IndexArgs& args, const StepRows& step,
                  const KvView& kv);

}  // namespace peregrine::cuda
