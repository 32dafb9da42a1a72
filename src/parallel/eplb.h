// Expert-parallel load balancing: which copies of which experts every rank holds, planned from how
// often each expert was chosen.
//
// The method is that of DeepSeek's public EPLB (github.com/deepseek-ai/EPLB; DeepSeek-V3 report,
// section 3.4): copies go, one at a time, to the expert with the highest load per copy; packing
// takes the heaviest piece first and gives it to the least loaded bin that has room. Where the
// nodes divide the expert groups the plan is hierarchical: groups are packed onto nodes, copies are
// made within a node, then packed onto its ranks. Otherwise it is global: one group, one node.
//
// Pure arithmetic over counts; nothing here moves a weight or knows a communicator.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace peregrine {

struct EplbShape {
  int replicas = 0;  // slots a layer over all ranks: experts plus redundant copies
  int groups = 1;    // of consecutive experts that a token's choice is limited to; 1: no such limit
  int nodes = 1;     // hosts
  int ranks = 1;     // over all nodes
};

// Where the experts of one layer are. Rank r holds the slots r * slots_per_rank and up.
struct ExpertPlacement {
  int slots_per_rank = 0;
  std::vector<int32_t> expert_of_slot;  // [replicas]
  std::vector<int32_t> copies;          // [experts], at least 1 each

  int ranks() const { return static_cast<int>(expert_of_slot.size()) / slots_per_rank; }
  int rank_of_slot(int slot) const { return slot / slots_per_rank; }
};

// Load of the ranks when the copies of an expert share its load evenly.
struct PlacementLoad {
  std::vector<double> ranks;  // in units of the counts
  double slowest_over_mean = 1;
};

// Plans one layer from `counts`, one an expert, none negative. Throws Error(kInvalidArgument) for a
// shape that cannot be: ranks that do not divide the replicas, nodes that do not divide the ranks,
// groups that do not divide the experts, fewer replicas than experts, or, in a hierarchical plan,
// nodes that do not divide the replicas.
ExpertPlacement plan_experts(std::span<const double> counts, const EplbShape& shape);

// One copy of each expert, in order. `ranks` must divide `experts`.
ExpertPlacement contiguous_placement(int experts, int ranks);

PlacementLoad placement_load(const ExpertPlacement& placement, std::span<const double> counts);

// Slots of a rank whose expert the rank does not hold in `from`: what a change has to move.
int64_t slots_to_move(const ExpertPlacement& from, const ExpertPlacement& to);

}  // namespace peregrine
