#include "parallel/expert_reader.h"

#include <map>
#include <string_view>
#include <utility>

#include "checkpoint/weight_scan.h"
#include "engine/model_impl.h"

namespace peregrine {
namespace {

class CheckpointExperts {
 public:
  explicit CheckpointExperts(std::shared_ptr<const Model> model) : model_(std::move(model)) {}

  ReadExpert read(int layer, int expert) {
    const Model::Impl& m = model_->impl();
    const TensorSource& source = *m.checkpoint.source;
    const std::string prefix = Weights::expert_prefix(m.config(), layer, expert);
    std::vector<WeightRange> ranges;
    uint64_t bytes = 0;
    for (const char* part : {".w1", ".w2", ".w3"})
      for (const char* kind : {".weight", ".scale"})
        if (const TensorView* view = source.find(prefix + part + kind)) {
          ranges.push_back({view, {view->data, view->bytes}});
          bytes += view->bytes;
        }
    scan_weights(source, std::move(ranges), {});
    // Bound once: tensors off their alignment are copied.
    auto [at, is_new] = bound_.try_emplace({layer, expert});
    if (is_new) at->second = m.weights.bind_expert(m.config(), source, layer, expert);
    return {.weights = at->second, .bytes = bytes};
  }

 private:
  const std::shared_ptr<const Model> model_;
  std::map<std::pair<int, int>, Expert> bound_;
};

}  // namespace

std::vector<int> experts_of_layers(const Model& model) {
  const ModelConfig& c = model.impl().config();
  std::vector<int> experts(static_cast<size_t>(c.n_layers), c.n_routed_experts);
  if (c.has_drafter())
    experts.insert(experts.end(), static_cast<size_t>(c.n_mtp_layers), c.dspark_n_routed_experts);
  return experts;
}

ExpertReader checkpoint_experts(std::shared_ptr<const Model> model) {
  auto experts = std::make_shared<CheckpointExperts>(std::move(model));
  return [experts](int layer, int expert) { return experts->read(layer, expert); };
}

}  // namespace peregrine
