#include "model/expert_exchange.h"

#include <charconv>

#include "model/weights.h"

namespace peregrine {

std::optional<RoutedExpert> routed_expert_of(const ModelConfig& config, std::string_view name) {
  constexpr std::string_view kExperts = ".ffn.experts.";
  const size_t at = name.find(kExperts);
  if (at == std::string_view::npos) return std::nullopt;
  RoutedExpert found{.of = name.starts_with("mtp.") ? config.dspark_n_routed_experts
                                                    : config.n_routed_experts};
  const char* digits = name.data() + at + kExperts.size();
  std::from_chars(digits, name.data() + name.size(), found.expert);
  return found;
}

void take_part(Backend& backend, const ModelConfig& config, const Weights& weights, Pass pass) {
  const auto serve = [&](const MoeWeights& w) {
    const int64_t active = w.router.n_active;
    w.exchange->experts(backend, w.layer,
                        {.u = {nullptr, 0, config.dim, Elem::kF32},
                         .ids = {nullptr, 0, active, Elem::kI32},
                         .weights = {nullptr, 0, active, Elem::kF32},
                         .routed = w.routed,
                         .shared = &w.shared,
                         .out = {nullptr, 0, config.dim, Elem::kF32}});
  };
  const int split = config.first_decoder_layer();
  if (pass == Pass::kEncoder)
    for (int l = 0; l < split; ++l) serve(weights.layers[static_cast<size_t>(l)].moe);
  if (pass == Pass::kDecoder)
    for (int l = split; l < config.n_layers; ++l) serve(weights.layers[static_cast<size_t>(l)].moe);
  if (pass == Pass::kDrafter)
    for (const LayerWeights& stage : weights.drafter->stages) serve(stage.moe);
}

Pass join_pass(Backend& backend, const ModelConfig& config, const Weights& weights, Pass mine) {
  const OpenPass open = weights.exchange->open_pass(mine, /*has_rows=*/false);
  if (open.any_rows) take_part(backend, config, weights, open.pass);
  return open.pass;
}

}  // namespace peregrine
