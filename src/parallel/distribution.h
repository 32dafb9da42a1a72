// Which part of a model each of N ranks holds under expert or tensor parallelism, from the config
// alone.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/config.h"
#include "model/expert_exchange.h"
#include "model/tensor_split.h"

namespace peregrine {

// The experts of rank `rank`: consecutive ones, as even as can be. Throws Error(kInvalidArgument)
// when there are fewer experts than ranks.
Slice expert_share(int experts, int rank, int ranks);

struct RankShare {
  Slice experts;             // of a backbone layer
  Slice drafter_experts;     // of a draft stage; empty without a drafter
  int64_t expert_bytes = 0;  // routed experts, in the released storage type
  int64_t other_bytes = 0;   // everything else, on every rank
};

std::vector<RankShare> plan_ranks(const ModelConfig& config, int ranks);

// Under tensor parallelism: a rank's part of what ranks share, and what every rank holds whole.
struct TensorShare {
  Slice groups, heads;    // of attention
  Slice experts;          // of a backbone layer
  Slice drafter_experts;  // of a draft stage
  Slice vocabulary;       // rows of embedding, head and Markov head
  Slice engram_columns;   // of an Engram table
  int64_t shared_bytes = 0;
  int64_t other_bytes = 0;  // indexers, compressors, routers, norms, small projections
};

std::vector<TensorShare> plan_tensor_ranks(const ModelConfig& config, int ranks);

}  // namespace peregrine
