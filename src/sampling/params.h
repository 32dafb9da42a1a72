// Checks of what a request asks of the sampler. validate() is the only gate, so everything behind
// it assumes values in range.
#pragma once

#include "peregrine/generation.h"

namespace peregrine {

// Throws Error(kInvalidArgument) naming the first field out of range.
void validate(const SamplingParams& params, int vocab_size);

}  // namespace peregrine
