// Experts of any format in f32 arithmetic without tensor cores: unquantised checkpoints.
#pragma once

#include "backend/cuda/launch.h"

namespace peregrine::cuda {

void experts_plain(const Launch& launch, const ExpertsArgs& args, const Expert* table);

}  // namespace peregrine::cuda
