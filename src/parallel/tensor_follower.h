// The ranks of a tensor-parallel group that do not lead: they run the steps that the leader
// announces, on stores of their own with the same content.
#pragma once

#include "parallel/rank_tensors.h"
#include "peregrine/model.h"

namespace peregrine {

// Follows until the leader's RankTensors::end(). `model` was loaded with `group`. Throws
// Error(kUnavailable) when the leader is lost.
void follow_leader(const Model& model, RankTensors& group);

}  // namespace peregrine
