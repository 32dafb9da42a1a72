// The router and the experts of the CUDA backend (spec: model.md 5.11).
#pragma once

#include "backend/cuda/launch.h"

namespace peregrine::cuda {

void route(const Launch& launch, Tensor logits, const Router& router, const uint8_t* is_image,
           Tensor ids, Tensor weights);

// `table`: device array of args.routed followed by *args.shared where there is one.
void experts(const Launch& launch, const ExpertsArgs& args, const Expert* table);

}  // namespace peregrine::cuda
