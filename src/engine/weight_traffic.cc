#include "engine/weight_traffic.h"

#include <algorithm>

#include "checkpoint/inventory.h"

namespace peregrine {

WeightTraffic::WeightTraffic(const ModelConfig& config, Backend& backend)
    : backend_(backend),
      last_layer_(config.n_layers - 1),
      chosen_(static_cast<size_t>(config.n_routed_experts)) {
  const auto routed =
      static_cast<uint64_t>(take_inventory(config).of(TensorKind::kRoutedExperts).bytes);
  expert_bytes_ = routed / static_cast<uint64_t>(config.n_layers) /
                  static_cast<uint64_t>(config.n_routed_experts);
  // decode_bytes_per_token counts the chosen experts of one row; here they are counted by name.
  const uint64_t one_row = expert_bytes_ * static_cast<uint64_t>(config.n_layers) *
                           static_cast<uint64_t>(config.n_activated_experts);
  dense_bytes_ = static_cast<uint64_t>(decode_bytes_per_token(config)) - one_row;
}

void WeightTraffic::watch(Forward& forward) {
  forward.hooks.after_routing = [this](int layer, Tensor ids) { count(layer, ids); };
}

void WeightTraffic::count(int layer, Tensor expert_ids) {
  ids_.resize(static_cast<size_t>(expert_ids.rows * expert_ids.cols));
  backend_.copy_out(ids_.data(), expert_ids.data, ids_.size() * sizeof(int32_t));
  std::fill(chosen_.begin(), chosen_.end(), false);
  for (const int32_t id : ids_) chosen_[static_cast<size_t>(id)] = true;
  bytes_ += expert_bytes_ * static_cast<uint64_t>(std::count(chosen_.begin(), chosen_.end(), true));
  if (layer == last_layer_) bytes_ += dense_bytes_;
}

}  // namespace peregrine
