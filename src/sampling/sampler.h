// Drawing tokens by key, and log-probabilities.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/philox.h"
#include "peregrine/generation.h"
#include "sampling/distribution.h"

namespace peregrine {

// Names a step of a sequence: its seed and the position of the first token the step decides
// (base/philox.h says why the first).
struct DrawKey {
  uint64_t seed = 0;
  uint64_t position = 0;
};

// The uniform number of a step for one purpose; `slot` is 0 outside draft blocks.
double draw_uniform(const DrawKey& key, Purpose purpose, uint32_t slot);

// One token from a distribution that is not empty.
int32_t draw(const Distribution& distribution, const DrawKey& key, Purpose purpose,
             uint32_t slot = 0);

// Of the model's own distribution: temperature 1, before penalties, bias and filters. `logits` is
// the row that decided `chosen`, whether a plain step or a verification row produced it. Costs a
// pass over the vocabulary, so call it only for requests that ask. NaN logits are left out.
TokenLogprobs log_probabilities(std::span<const float> logits, int32_t chosen, int top_n);

}  // namespace peregrine
