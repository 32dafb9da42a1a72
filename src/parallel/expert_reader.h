// Experts that a rank did not load, from the checkpoint that it has mapped.
#pragma once

#include <memory>
#include <vector>

#include "parallel/expert_balance.h"
#include "peregrine/model.h"

namespace peregrine {

// How many routed experts each layer has, drafter stages last.
std::vector<int> experts_of_layers(const Model& model);

// Binds an expert and reads its bytes, which also refuses NaN codes: loading did not look at them.
ExpertReader checkpoint_experts(std::shared_ptr<const Model> model);

}  // namespace peregrine
