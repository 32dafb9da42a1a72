// Tensor parallelism for a device: over host memory, or over NCCL where this build has it.
#pragma once

#include <memory>
#include <string>

#include "parallel/rank_tensors.h"

namespace peregrine {

// For `device` as in make_backend. With "cuda" each rank of a host gets a GPU of its own, so this
// comes before anything else uses one. Throws Error(kUnavailable) when this build has no NCCL.
std::unique_ptr<RankTensors> make_rank_tensors(std::unique_ptr<Communicator> communicator,
                                               const std::string& device);

}  // namespace peregrine
