// A simulation of expert parallelism on many ranks: what a step would take if links and kernels
// cost what the caller says (spec: parallel.md, "scale by simulation").
//
// Nothing here is measured. Tokens choose experts at random in proportion to given counts; rows,
// bytes and the work of every rank follow from the placement; times are bytes over bandwidth and
// work over speed, the slowest rank counts, and nothing overlaps. What it leaves out: topology,
// congestion, launch costs, attention's dependence on context.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/eplb.h"

namespace peregrine {

// Costs and sizes; all are inputs.
struct ClusterModel {
  int dim = 5120;           // of a row
  int expert_width = 2304;  // inner size of an expert
  int active = 6;           // experts a row chooses
  int layers = 1;
  int rows_a_rank = 64;   // of a step
  double link_gb_s = 40;  // of a rank, each direction
  double link_us = 20;    // of one all-to-all
  double memory_gb_s = 4000;
  double tflop_s = 1000;
  double dense_us = 60;  // of a layer besides its routed experts
};

struct SimulatedLayer {
  double dispatch_us = 0, experts_us = 0, combine_us = 0, dense_us = 0;
  double slowest_over_mean = 1;  // of the rows that ranks compute

  double communication_us() const { return dispatch_us + combine_us; }
  double total_us() const { return communication_us() + experts_us + dense_us; }
};

// Experts that rows choose: [rows][active], each row's distinct and ascending.
std::vector<int32_t> sample_routing(std::span<const double> counts, int rows, int active,
                                    uint64_t seed);

// One layer: `routing` of all ranks' rows, rank by rank. Copies of an expert take turns.
SimulatedLayer simulate_layer(const ClusterModel& model, const ExpertPlacement& placement,
                              std::span<const int32_t> routing);

}  // namespace peregrine
