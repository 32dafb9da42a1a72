// bench cluster-sim: expert parallelism on 8 to 128 ranks as arithmetic. No figure it prints was
// measured.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "bench.h"
#include "checkpoint/synthetic.h"
#include "output.h"
#include "parallel/cluster_model.h"
#include "parallel/expert_counts.h"

namespace peregrine {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kNotes =
    "Everything printed is a SIMULATION: bytes over the given bandwidths, work over the given "
    "speeds,\nthe slowest rank counts, nothing overlaps. The defaults are round numbers of no "
    "machine in particular.\n"
    "Examples:\n"
    "  peregrine bench cluster-sim --zipf 1\n"
    "  peregrine bench cluster-sim --counts tests/data/eplb/tiny_counts.json --link-gb-s 50\n"
    "  peregrine bench cluster-sim --zipf 0.8 --ranks 64 128 --redundant-per-rank 2 --json";

struct Flags {
  std::string counts;
  double zipf = 1;
  std::vector<int> ranks = {8, 16, 32, 64, 128};
  int experts = 0, redundant_per_rank = 1;
  uint64_t seed = 1;
  ClusterModel model;
  bool json = false;
};

struct Row {
  double step_ms = 0, communication = 0, slowest_over_mean = 0;  // share; mean over layers
};

// All layers of a step with one placement a layer.
template <typename Place>
Row simulate(const Flags& f, const std::vector<std::vector<double>>& loads, int ranks,
             Place place) {
  Row row;
  double all_us = 0, communication_us = 0;
  for (size_t l = 0; l < loads.size(); ++l) {
    const auto routing =
        sample_routing(loads[l], ranks * f.model.rows_a_rank, f.model.active, f.seed * 1000 + l);
    const SimulatedLayer layer = simulate_layer(f.model, place(loads[l]), routing);
    all_us += layer.total_us();
    communication_us += layer.communication_us();
    row.slowest_over_mean += layer.slowest_over_mean / static_cast<double>(loads.size());
  }
  row.step_ms = all_us / 1e3;
  row.communication = communication_us / all_us;
  return row;
}

std::vector<std::vector<double>> make_loads(const Flags& f, size_t experts) {
  std::vector<std::vector<double>> loads;
  const ExpertCounts recorded = f.counts.empty() ? ExpertCounts{} : read_expert_counts(f.counts);
  for (size_t l = 0; l < static_cast<size_t>(f.model.layers); ++l)
    loads.push_back(recorded.empty() ? zipf_counts(experts, f.zipf, f.seed + l)
                                     : stretch_counts(recorded, l, experts));
  return loads;
}

void run(const Flags& f) {
  const auto experts = static_cast<size_t>(f.experts);
  const auto loads = make_loads(f, experts);
  const std::string source =
      f.counts.empty() ? fmt::format("Zipf loads, s = {}", f.zipf)
                       : fmt::format("loads recorded in {}, layers laid side by side", f.counts);
  Json list = Json::array();
  std::string text = fmt::format(
      "SIMULATION, nothing here was measured: {} layers of {} experts, {} active, {} rows a rank; "
      "{}\n{:>10}{:>22}{:>22}{:>24}\n{:>10}{:>11}{:>11}{:>11}{:>11}{:>12}{:>12}\n",
      f.model.layers, experts, f.model.active, f.model.rows_a_rank, source, "", "slowest/mean",
      "step ms", "communication", "sim ranks", "plain", "EPLB", "plain", "EPLB", "plain", "EPLB");
  for (const int ranks : f.ranks) {
    if (experts % static_cast<size_t>(ranks) != 0)
      fail(ErrorKind::kInvalidArgument, "{} experts on {} ranks: every rank has to hold as many",
           experts, ranks);
    const Row plain = simulate(f, loads, ranks,
                               [&](const auto&) { return contiguous_placement(f.experts, ranks); });
    const Row eplb = simulate(f, loads, ranks, [&](const auto& counts) {
      return plan_experts(counts,
                          {.replicas = f.experts + ranks * f.redundant_per_rank, .ranks = ranks});
    });
    text += fmt::format("{:>10}{:>11.3f}{:>11.3f}{:>11.2f}{:>11.2f}{:>11.0f}%{:>11.0f}%\n", ranks,
                        plain.slowest_over_mean, eplb.slowest_over_mean, plain.step_ms,
                        eplb.step_ms, 100 * plain.communication, 100 * eplb.communication);
    const auto entry = [](const Row& row) {
      return Json{{"simulated_slowest_over_mean", row.slowest_over_mean},
                  {"simulated_step_ms", row.step_ms},
                  {"simulated_communication_share", row.communication}};
    };
    list.push_back({{"ranks", ranks}, {"plain", entry(plain)}, {"eplb", entry(eplb)}});
  }
  const ClusterModel& m = f.model;
  text += fmt::format(
      "simulated with links of {} GB/s and {} us a rank, memory of {} GB/s, {} TFLOP/s, {} us a "
      "layer besides experts, {} redundant slot(s) a rank\n",
      m.link_gb_s, m.link_us, m.memory_gb_s, m.tflop_s, m.dense_us, f.redundant_per_rank);
  if (!f.json) return write_output(text);
  write_output(Json{{"simulation", true},
                    {"loads", source},
                    {"layers", m.layers},
                    {"experts", experts},
                    {"active", m.active},
                    {"rows_a_rank", m.rows_a_rank},
                    {"link_gb_s", m.link_gb_s},
                    {"link_us", m.link_us},
                    {"memory_gb_s", m.memory_gb_s},
                    {"tflop_s", m.tflop_s},
                    {"dense_us", m.dense_us},
                    {"redundant_per_rank", f.redundant_per_rank},
                    {"results", list}}
                   .dump(2) +
               "\n");
}

}  // namespace

void add_bench_cluster_sim(CLI::App& bench) {
  auto f = std::make_shared<Flags>();
  const ModelConfig released = released_config();
  f->experts = released.n_routed_experts;
  f->model.layers = released.n_layers;
  f->model.active = released.n_activated_experts;
  f->model.dim = released.dim;
  f->model.expert_width = released.moe_inter_dim;
  CLI::App* command = bench.add_subcommand(
      "cluster-sim", "SIMULATE expert parallelism on many ranks; nothing is measured");
  command->footer(kNotes);
  const auto number = [&](const char* name, auto& value, const std::string& what) {
    command->add_option(name, value, fmt::format("{} (default: {})", what, value))
        ->check(CLI::PositiveNumber);
  };
  command->add_option("--counts", f->counts, "Recorded counts, as eplb record prints them");
  command->add_option("--zipf", f->zipf, "Skew of loads without --counts (default: 1)")
      ->check(CLI::Range(0.0, 4.0));
  command->add_option("--ranks", f->ranks, "Ranks, several figures (default: 8 16 32 64 128)")
      ->check(CLI::Range(1, 4096));
  command
      ->add_option("--redundant-per-rank", f->redundant_per_rank,
                   "Second copies that EPLB places (default: 1)")
      ->check(CLI::Range(0, 64));
  command->add_option("--seed", f->seed, "Of the tokens' choices (default: 1)");
  number("--layers", f->model.layers, "Layers");
  number("--experts", f->experts, "Routed experts a layer");
  number("--active", f->model.active, "Experts that a token chooses");
  number("--dim", f->model.dim, "Width of a row");
  number("--expert-width", f->model.expert_width, "Width of an expert");
  number("--rows", f->model.rows_a_rank, "Rows of a step on each rank");
  number("--link-gb-s", f->model.link_gb_s, "Bandwidth of a rank's link each way, GB/s");
  number("--link-us", f->model.link_us, "Time of an empty all-to-all");
  number("--memory-gb-s", f->model.memory_gb_s, "Memory bandwidth of a rank");
  number("--tflop-s", f->model.tflop_s, "Speed of a rank's expert products");
  number("--dense-us", f->model.dense_us, "A layer besides its routed experts");
  command->add_flag("--json", f->json, "Print one JSON object");
  command->callback([f] { run(*f); });
}

}  // namespace peregrine
