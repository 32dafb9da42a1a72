// peregrine eplb: counts of chosen experts to a placement of experts over ranks, offline.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "bench_prompts.h"
#include "commands.h"
#include "engine/session_impl.h"
#include "model_options.h"
#include "output.h"
#include "parallel/eplb.h"
#include "parallel/expert_counts.h"

namespace peregrine {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kExamples =
    "Examples:\n"
    "  peregrine eplb record --prompts benchmarks/prompts_speculation.jsonl > counts.json\n"
    "  peregrine eplb plan --counts counts.json --ranks 4 --redundant 4\n"
    "  peregrine eplb plan --counts counts.csv --ranks 64 --redundant 64 --json > placement.json\n"
    "  peregrine eplb plan --counts counts.csv --ranks 16 --nodes 2 --groups 8";

constexpr const char* kPlanNotes =
    "Examples:\n"
    "  peregrine eplb plan --counts counts.json --ranks 4 --redundant 4\n"
    "  peregrine eplb plan --counts counts.csv --ranks 16 --nodes 2 --groups 8 --json\n"
    "Counts are JSON, [[layer 0's experts...], ...] or {\"counts\": [...]}, or CSV, a line a "
    "layer.\n"
    "slowest/mean is the load of the busiest rank over the mean, 1 when all are even.";

struct PlanFlags {
  std::string counts;
  int ranks = 0, redundant = 0;
  EplbShape shape;
  bool json = false;
};

struct LayerPlan {
  ExpertPlacement placement;
  double slowest = 1;                     // over the mean
  std::optional<double> slowest_without;  // with one copy each, in order; where that divides evenly
};

void print_text(const PlanFlags& flags, const std::vector<LayerPlan>& layers, size_t experts) {
  std::string text = fmt::format("{} layers of {} experts in {} slots on {} ranks\n", layers.size(),
                                 experts, flags.shape.replicas, flags.ranks);
  double worst = 1;
  for (size_t l = 0; l < layers.size(); ++l) {
    const LayerPlan& layer = layers[l];
    worst = std::max(worst, layer.slowest);
    text += fmt::format("layer {}: slowest/mean {:.3f}", l, layer.slowest);
    if (layer.slowest_without)
      text += fmt::format(" ({:.3f} with one copy each, in order)", *layer.slowest_without);
    text += '\n';
    const auto& slots = layer.placement.expert_of_slot;
    const auto per_rank = static_cast<size_t>(layer.placement.slots_per_rank);
    for (size_t first = 0; first < slots.size(); first += per_rank)
      text += fmt::format("  rank {}: {}\n", first / per_rank,
                          fmt::join(slots.begin() + static_cast<ptrdiff_t>(first),
                                    slots.begin() + static_cast<ptrdiff_t>(first + per_rank), " "));
  }
  text += fmt::format("worst layer: slowest/mean {:.3f}\n", worst);
  write_output(text);
}

void print_json(const PlanFlags& flags, const std::vector<LayerPlan>& layers, size_t experts) {
  Json list = Json::array();
  for (const LayerPlan& layer : layers) {
    Json entry = {{"slowest_over_mean", layer.slowest}};
    if (layer.slowest_without) entry["slowest_over_mean_without"] = *layer.slowest_without;
    entry["expert_of_slot"] = layer.placement.expert_of_slot;
    entry["copies"] = layer.placement.copies;
    list.push_back(std::move(entry));
  }
  write_output(Json{{"experts", experts},
                    {"slots", flags.shape.replicas},
                    {"ranks", flags.ranks},
                    {"nodes", flags.shape.nodes},
                    {"groups", flags.shape.groups},
                    {"layers", std::move(list)}}
                   .dump(2) +
               "\n");
}

void plan(PlanFlags flags) {
  const ExpertCounts counts = read_expert_counts(flags.counts);
  const auto experts = static_cast<int>(counts.front().size());
  flags.shape.ranks = flags.ranks;
  flags.shape.replicas = experts + flags.redundant;
  std::vector<LayerPlan> layers;
  for (const std::vector<double>& layer : counts) {
    LayerPlan made{.placement = plan_experts(layer, flags.shape)};
    made.slowest = placement_load(made.placement, layer).slowest_over_mean;
    if (experts % flags.ranks == 0)
      made.slowest_without =
          placement_load(contiguous_placement(experts, flags.ranks), layer).slowest_over_mean;
    layers.push_back(std::move(made));
  }
  flags.json ? print_json(flags, layers, counts.front().size())
             : print_text(flags, layers, counts.front().size());
}

// -- record --------------------------------------------------------------------------------------

struct RecordFlags {
  ModelOptions model;
  std::string prompts;
  int max_tokens = 64;
};

void record(const RecordFlags& flags) {
  const auto model = load_model(flags.model);
  const auto prompts = read_bench_prompts(flags.prompts, model->impl().tokenizer);
  const ModelConfig& config = model->impl().config();
  std::vector<std::vector<int64_t>> counts(
      static_cast<size_t>(config.n_layers),
      std::vector<int64_t>(static_cast<size_t>(config.n_routed_experts), 0));
  Session session(model, session_options(flags.model, 0));
  std::vector<int32_t> ids;
  session.impl().forward.hooks.after_routing = [&](int layer, Tensor chosen) {
    ids.resize(static_cast<size_t>(chosen.rows * chosen.cols));
    model->impl().backend->copy_out(ids.data(), chosen.data, ids.size() * sizeof(int32_t));
    for (const int32_t id : ids) ++counts[static_cast<size_t>(layer)][static_cast<size_t>(id)];
  };
  int64_t tokens = 0;
  for (const BenchPrompt& prompt : prompts) {
    tokens += session.sync(prompt.ids).computed;
    for (int i = 0; i < flags.max_tokens; ++i) {
      const auto logits = session.logits();
      session.step(
          static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    }
    tokens += flags.max_tokens;
  }
  write_output(Json{{"tokens", tokens}, {"counts", counts}}.dump() + "\n");
}

}  // namespace

void add_eplb(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("eplb", "Place the experts of a model over ranks by their load");
  command->footer(kExamples);
  command->require_subcommand(1);

  auto p = std::make_shared<PlanFlags>();
  CLI::App* planning = command->add_subcommand("plan", "Counts to a placement and its balance");
  planning->footer(kPlanNotes);
  planning->add_option("--counts", p->counts, "How often each expert was chosen, JSON or CSV")
      ->required();
  planning->add_option("--ranks", p->ranks, "Ranks that share the experts")
      ->required()
      ->check(CLI::Range(1, 4096));
  planning
      ->add_option("--redundant", p->redundant,
                   "Slots a layer beyond one an expert, for second copies (default: 0)")
      ->check(CLI::Range(0, 65536));
  planning->add_option("--nodes", p->shape.nodes, "Hosts that the ranks are on (default: 1)")
      ->check(CLI::Range(1, 4096));
  planning
      ->add_option("--groups", p->shape.groups,
                   "Groups of experts that stay on one host where the hosts divide them "
                   "(default: 1)")
      ->check(CLI::Range(1, 65536));
  planning->add_flag("--json", p->json, "Print one JSON object");
  planning->callback([p] { plan(*p); });

  auto r = std::make_shared<RecordFlags>();
  CLI::App* recording = command->add_subcommand(
      "record", "Run prompts through a model and print how often each expert was chosen");
  recording
      ->add_option("--prompts", r->prompts,
                   "Prompts, one JSON object with \"domain\" and \"user\" a line")
      ->required();
  recording
      ->add_option("--max-tokens", r->max_tokens,
                   "Tokens to continue each prompt with, the likeliest each time (default: 64)")
      ->check(CLI::Range(0, 65536));
  add_model_options(*recording, r->model);
  recording->callback([r] { record(*r); });
}

}  // namespace peregrine
