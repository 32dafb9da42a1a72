#include "parallel/cluster_model.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "base/fail.h"

namespace peregrine {
namespace {

constexpr int kTries = 64;  // draws of an expert that the row has not chosen yet

double expert_bytes(const ClusterModel& m) {  // FP4 codes and a scale byte per 32
  return 3.0 * m.dim * m.expert_width * (0.5 + 1.0 / 32);
}
double pair_flop(const ClusterModel& m) { return 6.0 * m.dim * m.expert_width; }
// FP8 codes and scales once a rank; expert and weight a pair; results as bf16 a pair.
double row_bytes(const ClusterModel& m) { return m.dim * (1 + 1.0 / 32); }
constexpr double kPairBytes = 12;
double result_bytes(const ClusterModel& m) { return 2.0 * m.dim; }

struct RankWork {
  double sent = 0, received = 0;            // bytes of the dispatch, to and from others
  double back_sent = 0, back_received = 0;  // of the combine
  std::vector<int> pairs;                   // by slot of the rank
};

}  // namespace

std::vector<int32_t> sample_routing(std::span<const double> counts, int rows, int active,
                                    uint64_t seed) {
  if (active < 1 || active > static_cast<int>(counts.size()))
    fail(ErrorKind::kInvalidArgument, "{} active experts of {}: expected 1 to {}", active,
         counts.size(), counts.size());
  std::vector<double> below(counts.size());
  std::partial_sum(counts.begin(), counts.end(), below.begin());
  std::mt19937_64 random(seed);
  std::vector<int32_t> routing;
  std::vector<bool> chosen(counts.size());
  for (int row = 0; row < rows; ++row) {
    std::fill(chosen.begin(), chosen.end(), false);
    for (int k = 0; k < active; ++k) {
      size_t expert = 0;
      // Drawing again what was drawn before is choosing among the others in proportion.
      for (int tries = 0; tries < kTries; ++tries) {
        const double at = static_cast<double>(random() >> 11) * 0x1p-53 * below.back();
        expert =
            static_cast<size_t>(std::upper_bound(below.begin(), below.end(), at) - below.begin());
        if (expert < counts.size() && !chosen[expert]) break;
      }
      if (expert >= counts.size() || chosen[expert])  // the rest is hardly ever chosen: any will do
        expert =
            static_cast<size_t>(std::find(chosen.begin(), chosen.end(), false) - chosen.begin());
      chosen[expert] = true;
    }
    for (size_t e = 0; e < chosen.size(); ++e)
      if (chosen[e]) routing.push_back(static_cast<int32_t>(e));
  }
  return routing;
}

SimulatedLayer simulate_layer(const ClusterModel& m, const ExpertPlacement& placement,
                              std::span<const int32_t> routing) {
  const auto ranks = static_cast<size_t>(placement.ranks());
  std::vector<std::vector<int>> slots_of(placement.copies.size());
  for (size_t slot = 0; slot < placement.expert_of_slot.size(); ++slot)
    slots_of[static_cast<size_t>(placement.expert_of_slot[slot])].push_back(static_cast<int>(slot));
  std::vector<size_t> turn(slots_of.size(), 0);

  std::vector<RankWork> work(ranks);
  for (RankWork& w : work) w.pairs.assign(static_cast<size_t>(placement.slots_per_rank), 0);
  const auto active = static_cast<size_t>(m.active);
  const auto rows_a_rank = static_cast<size_t>(m.rows_a_rank);
  std::vector<size_t> reached;  // ranks that have the row already
  for (size_t row = 0; row * active < routing.size(); ++row) {
    const size_t home = row / rows_a_rank;
    reached.clear();
    for (const int32_t expert : routing.subspan(row * active, active)) {
      const auto& copies = slots_of[static_cast<size_t>(expert)];
      const int slot = copies[turn[static_cast<size_t>(expert)]++ % copies.size()];
      const auto rank = static_cast<size_t>(placement.rank_of_slot(slot));
      ++work[rank].pairs[static_cast<size_t>(slot % placement.slots_per_rank)];
      if (rank == home) continue;
      double bytes = kPairBytes;
      if (std::find(reached.begin(), reached.end(), rank) == reached.end()) {
        reached.push_back(rank);
        bytes += row_bytes(m);
      }
      work[home].sent += bytes;
      work[rank].received += bytes;
      work[rank].back_sent += result_bytes(m);
      work[home].back_received += result_bytes(m);
    }
  }

  SimulatedLayer layer{.dense_us = m.dense_us};
  const double bytes_a_us = m.link_gb_s * 1e3, memory_a_us = m.memory_gb_s * 1e3,
               flop_a_us = m.tflop_s * 1e6;
  double most_pairs = 0, all_pairs = 0, out = 0, back = 0;
  for (const RankWork& w : work) {
    out = std::max({out, w.sent, w.received});
    back = std::max({back, w.back_sent, w.back_received});
    double us = 0, pairs = 0;
    for (const int n : w.pairs) {
      pairs += n;
      // An expert with any row is read once.
      if (n > 0) us += std::max(expert_bytes(m) / memory_a_us, n * pair_flop(m) / flop_a_us);
    }
    layer.experts_us = std::max(layer.experts_us, us);
    most_pairs = std::max(most_pairs, pairs);
    all_pairs += pairs;
  }
  if (ranks > 1) {
    layer.dispatch_us = m.link_us + out / bytes_a_us;
    layer.combine_us = m.link_us + back / bytes_a_us;
  }
  if (all_pairs > 0) layer.slowest_over_mean = most_pairs * static_cast<double>(ranks) / all_pairs;
  return layer;
}

}  // namespace peregrine
