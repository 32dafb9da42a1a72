#include "parallel/eplb.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/fail.h"

namespace peregrine {
namespace {

// Items by weight, heaviest first; equal ones in their order.
std::vector<int> heaviest_first(std::span<const double> weights) {
  std::vector<int> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return weights[static_cast<size_t>(a)] > weights[static_cast<size_t>(b)];
  });
  return order;
}

// Distributes items over bins of equal capacity: result[bin] lists its items in the order they
// came. With room for one item a bin, item i stays in bin i.
std::vector<std::vector<int>> pack(std::span<const double> weights, int bins) {
  const size_t capacity = weights.size() / static_cast<size_t>(bins);
  std::vector<std::vector<int>> packed(static_cast<size_t>(bins));
  if (capacity == 1) {
    for (size_t i = 0; i < packed.size(); ++i) packed[i].push_back(static_cast<int>(i));
    return packed;
  }
  std::vector<double> load(packed.size(), 0);
  for (const int item : heaviest_first(weights)) {
    size_t best = packed.size();
    for (size_t bin = 0; bin < packed.size(); ++bin)
      if (packed[bin].size() < capacity && (best == packed.size() || load[bin] < load[best]))
        best = bin;
    packed[best].push_back(item);
    load[best] += weights[static_cast<size_t>(item)];
  }
  return packed;
}

// Copies of each item, `total` in all: every further one goes where the load per copy is highest.
struct Replication {
  std::vector<int> item;    // [total]: the items themselves, then the copies as they were made
  std::vector<int> copies;  // [items]
};

Replication replicate(std::span<const double> weights, int total) {
  Replication r{.item = std::vector<int>(weights.size()),
                .copies = std::vector<int>(weights.size(), 1)};
  std::iota(r.item.begin(), r.item.end(), 0);
  while (static_cast<int>(r.item.size()) < total) {
    size_t hottest = 0;
    double most = -1;
    for (size_t i = 0; i < weights.size(); ++i) {
      const double per_copy = weights[i] / r.copies[i];
      if (per_copy > most) most = per_copy, hottest = i;
    }
    r.item.push_back(static_cast<int>(hottest));
    ++r.copies[hottest];
  }
  return r;
}

void check(std::span<const double> counts, const EplbShape& s) {
  const auto experts = static_cast<int>(counts.size());
  const auto divides = [](int part, int whole) { return part > 0 && whole % part == 0; };
  if (experts == 0) fail(ErrorKind::kInvalidArgument, "no experts: expected at least one count");
  for (size_t e = 0; e < counts.size(); ++e)
    if (!(counts[e] >= 0 && std::isfinite(counts[e])))
      fail(ErrorKind::kInvalidArgument, "the count of expert {} is {}, expected 0 or more", e,
           counts[e]);
  if (s.replicas < experts)
    fail(ErrorKind::kInvalidArgument, "{} replicas for {} experts: expected at least one each",
         s.replicas, experts);
  if (!divides(s.ranks, s.replicas))
    fail(ErrorKind::kInvalidArgument, "{} replicas on {} ranks: every rank has to hold as many",
         s.replicas, s.ranks);
  if (!divides(s.nodes, s.ranks))
    fail(ErrorKind::kInvalidArgument, "{} ranks on {} nodes: every node has to hold as many",
         s.ranks, s.nodes);
  if (!divides(s.groups, experts))
    fail(ErrorKind::kInvalidArgument, "{} experts in {} groups: every group has to be as large",
         experts, s.groups);
}

}  // namespace

ExpertPlacement plan_experts(std::span<const double> counts, const EplbShape& shape) {
  check(counts, shape);
  const bool hierarchical = shape.groups % shape.nodes == 0;
  const int groups = hierarchical ? shape.groups : 1, nodes = hierarchical ? shape.nodes : 1;
  const int ranks_per_node = shape.ranks / nodes, replicas_per_node = shape.replicas / nodes;
  const size_t group_size = counts.size() / static_cast<size_t>(groups);

  ExpertPlacement placement{.slots_per_rank = shape.replicas / shape.ranks,
                            .expert_of_slot = {},
                            .copies = std::vector<int32_t>(counts.size(), 0)};
  placement.expert_of_slot.reserve(static_cast<size_t>(shape.replicas));

  std::vector<double> group_load(static_cast<size_t>(groups), 0);
  for (size_t e = 0; e < counts.size(); ++e) group_load[e / group_size] += counts[e];
  for (const std::vector<int>& groups_here : pack(group_load, nodes)) {
    std::vector<int> experts;  // of the node
    std::vector<double> loads;
    for (const int group : groups_here)
      for (size_t i = 0; i < group_size; ++i) {
        experts.push_back(static_cast<int>(static_cast<size_t>(group) * group_size + i));
        loads.push_back(counts[static_cast<size_t>(experts.back())]);
      }
    const Replication made = replicate(loads, replicas_per_node);
    std::vector<double> copy_load;
    for (const int item : made.item)
      copy_load.push_back(loads[static_cast<size_t>(item)] /
                          made.copies[static_cast<size_t>(item)]);
    for (const std::vector<int>& copies_here : pack(copy_load, ranks_per_node))
      for (const int copy : copies_here) {
        const int expert = experts[static_cast<size_t>(made.item[static_cast<size_t>(copy)])];
        placement.expert_of_slot.push_back(expert);
        ++placement.copies[static_cast<size_t>(expert)];
      }
  }
  return placement;
}

ExpertPlacement contiguous_placement(int experts, int ranks) {
  if (ranks < 1 || experts % ranks != 0)
    fail(ErrorKind::kInvalidArgument, "{} experts on {} ranks: every rank has to hold as many",
         experts, ranks);
  ExpertPlacement placement{.slots_per_rank = experts / ranks,
                            .expert_of_slot = std::vector<int32_t>(static_cast<size_t>(experts)),
                            .copies = std::vector<int32_t>(static_cast<size_t>(experts), 1)};
  std::iota(placement.expert_of_slot.begin(), placement.expert_of_slot.end(), 0);
  return placement;
}

PlacementLoad placement_load(const ExpertPlacement& placement, std::span<const double> counts) {
  PlacementLoad load{.ranks = std::vector<double>(static_cast<size_t>(placement.ranks()), 0)};
  for (size_t slot = 0; slot < placement.expert_of_slot.size(); ++slot) {
    const auto expert = static_cast<size_t>(placement.expert_of_slot[slot]);
    load.ranks[static_cast<size_t>(placement.rank_of_slot(static_cast<int>(slot)))] +=
        counts[expert] / placement.copies[expert];
  }
  const double total = std::accumulate(load.ranks.begin(), load.ranks.end(), 0.0);
  if (total > 0)
    load.slowest_over_mean = *std::max_element(load.ranks.begin(), load.ranks.end()) *
                             static_cast<double>(load.ranks.size()) / total;
  return load;
}

int64_t slots_to_move(const ExpertPlacement& from, const ExpertPlacement& to) {
  int64_t moved = 0;
  for (int rank = 0; rank < to.ranks(); ++rank) {
    const auto slots_of = [rank](const ExpertPlacement& p) {
      return std::span(p.expert_of_slot)
          .subspan(static_cast<size_t>(rank * p.slots_per_rank),
                   static_cast<size_t>(p.slots_per_rank));
    };
    const auto held = slots_of(from);
    for (const int32_t expert : slots_of(to))
      moved += std::find(held.begin(), held.end(), expert) == held.end();
  }
  return moved;
}

}  // namespace peregrine
