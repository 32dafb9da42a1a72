#include "model/weights.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/fail.h"
#include "formats/bf16.h"

namespace peregrine {
namespace {

WeightFormat format_of(const TensorView& view) {
  switch (view.dtype) {
    case DType::kF32:
      return WeightFormat::kF32;
    case DType::kBF16:
      return WeightFormat::kBF16;
    case DType::kF8E4M3:
      return WeightFormat::kF8;
    case DType::kI8:
    case DType::kU8:
    case DType::kF4:
      return WeightFormat::kF4;
    default:
      fail(ErrorKind::kBadCheckpoint, "{}: dtype {} cannot hold a weight matrix", view.name,
           dtype_name(view.dtype));
  }
}

}  // namespace

// Resolves names to views; one object per load.
class WeightBinder {
 public:
  WeightBinder(const ModelConfig& config, const TensorSource& source, const Weights& weights)
      : c_(config), source_(source), w_(weights), backend_(weights.backend_) {}

  // "<prefix>.weight" with its "<prefix>.scale" where the format has one: this rank's rows.
  Weight matrix(const std::string& prefix) {
    const TensorView view = held(need(prefix + ".weight"));
    Weight w;
    w.format = format_of(view);
    w.out = view.shape.at(0);
    w.in = view.shape.at(1);
    if (w.format == WeightFormat::kF4 && view.dtype != DType::kF4) w.in *= 2;
    w.data = adopt(view);
    if (w.format == WeightFormat::kF8 || w.format == WeightFormat::kF4)
      w.scale = adopt_scales(held(need(prefix + ".scale")));
    return w;
  }

  // A norm, bias or sink vector (bf16 or f32), widened.
  const float* vector(const std::string& name) { return own(widen(held(need(name)))); }

  const float* optional_vector(const std::string& name) {
    const TensorView* view = source_.find(name);
    return view ? own(widen(*view)) : nullptr;
  }

  HcWeights hyper_connection(const std::string& prefix) {
    return {.fn = static_cast<const float*>(adopt(need(prefix + "_fn"))),
            .base = vector(prefix + "_base"),
            .scale = vector(prefix + "_scale")};
  }

  AttentionWeights attention(const std::string& prefix, int layer) {
    const std::string a = prefix + ".attn.";
    AttentionWeights w;
    w.layer = number_of(layer);
    w.wq_a = matrix(a + "wq_a");
    w.wq_b = matrix(a + "wq_b");
    w.wkv = matrix(a + "wkv");
    w.wo_a = matrix(a + "wo_a");
    w.wo_b = matrix(a + "wo_b");
    w.q_norm = vector(a + "q_norm.weight");
    w.kv_norm = vector(a + "kv_norm.weight");
    w.sinks = vector(a + "attn_sink");
    if (layer >= 0 && c_.is_kv_source(layer)) {
      w.compressor_wkv = matrix(a + "compressor.wkv");
      if (c_.ratio(layer) == 2) w.compressor_wgate = matrix(a + "compressor.wgate");
      w.compressor_norm = vector(a + "compressor.norm.weight");
      w.index_wk = matrix(a + "indexer.wk");
      w.index_k_norm = vector(a + "indexer.k_norm.weight");
    }
    if (layer >= 0 && c_.is_index_source(layer)) {
      w.index_wq_b = matrix(a + "indexer.wq_b");
      w.index_weights = matrix(a + "indexer.weights_proj");
    }
    return w;
  }

  Expert expert(const std::string& prefix) {
    return {matrix(prefix + ".w1"), matrix(prefix + ".w2"), matrix(prefix + ".w3")};
  }

  MoeWeights moe(const std::string& prefix, int layer, int n_experts, int n_active) {
    const std::string f = prefix + ".ffn.";
    MoeWeights w;
    w.layer = number_of(layer);
    w.exchange = w_.exchange;
    w.tensors = w_.tensors;
    const Slice held = held_experts(n_experts);
    w.gate = matrix(f + "gate");
    w.router = {.bias = vector(f + "gate.bias"),
                .bias_image = optional_vector(f + "gate.bias_vl"),
                .n_experts = n_experts,
                .n_active = n_active};
    w.routed.reserve(static_cast<size_t>(n_experts));
    for (int e = 0; e < n_experts; ++e)
      w.routed.push_back(held.holds(e) ? expert(f + "experts." + std::to_string(e)) : Expert{});
    w.shared = expert(f + "shared_experts");
    return w;
  }

  EngramWeights engram(const std::string& prefix) {
    EngramWeights w;
    const TensorView codes = held(need(prefix + ".engram.embed.weight"));
    const TensorView scales = held(need(prefix + ".engram.embed.scale"));
    w.table = {.codes = static_cast<const uint8_t*>(adopt(codes)),
               .scales = static_cast<const uint8_t*>(adopt(scales)),
               .rows = codes.shape.at(0),
               .width = static_cast<int>(codes.shape.at(1))};
    w.wkv = matrix(prefix + ".engram.wkv");
    std::vector<float> gain = widen(need(prefix + ".engram.q_weight"));
    const std::vector<float> k = widen(need(prefix + ".engram.k_weight"));
    for (size_t i = 0; i < gain.size(); ++i) gain[i] *= k[i];
    w.gain = own(gain);
    return w;
  }

  // A backbone layer (layer >= 0) or drafter stage -1 - layer.
  LayerWeights block(const std::string& prefix, int layer) {
    LayerWeights w;
    w.hc_attn = hyper_connection(prefix + ".hc_attn");
    w.hc_ffn = hyper_connection(prefix + ".hc_ffn");
    w.attn_norm = vector(prefix + ".attn_norm.weight");
    w.ffn_norm = vector(prefix + ".ffn_norm.weight");
    w.attn = attention(prefix, layer);
    if (layer >= 0) {
      w.moe = moe(prefix, layer, c_.n_routed_experts, c_.n_activated_experts);
      if (c_.engram_table_of(layer) >= 0) w.engram = engram(prefix);
    } else {
      w.moe = moe(prefix, layer, c_.dspark_n_routed_experts, c_.dspark_n_activated_experts);
      w.moe.router.bias_image = nullptr;  // no image bias in the drafter (vision.md section 5)
    }
    return w;
  }

  DrafterWeights drafter() {
    DrafterWeights w;
    w.main_proj = matrix("mtp.0.main_proj");
    w.main_norm = vector("mtp.0.main_norm.weight");
    for (int s = 0; s < c_.n_mtp_layers; ++s)
      w.stages.push_back(block("mtp." + std::to_string(s), -1 - s));
    const std::string last = "mtp." + std::to_string(c_.n_mtp_layers - 1);
    w.norm = vector(last + ".norm.weight");
    w.markov_embed = matrix(last + ".markov_head.embed");
    w.markov_head = matrix(last + ".markov_head.head");
    w.confidence = matrix(last + ".confidence_head.proj");
    return w;
  }

 private:
  const TensorView& need(const std::string& name) const {
    const TensorView* view = source_.find(name);
    if (!view) fail(ErrorKind::kBadCheckpoint, "tensor {} is missing", name);
    return *view;
  }

  // A layer's number; drafter stages count on behind the last layer.
  int number_of(int layer) const { return layer >= 0 ? layer : c_.n_layers - 1 - layer; }

  Slice held_experts(int n_experts) const {
    if (w_.exchange) return w_.exchange->held(n_experts);
    return w_.tensors ? w_.tensors->split().share(n_experts, 1) : Slice{0, n_experts};
  }

  // The rows of a tensor that this rank holds.
  TensorView held(const TensorView& whole) const {
    return w_.tensors ? w_.tensors->split().held(c_, whole) : whole;
  }

  // Bytes that operations can read; a tensor the file placed off its element's alignment is copied.
  const void* adopt(const TensorView& view) {
    if (view.bytes == 0) return view.data;  // a rank without rows of this matrix
    const size_t align = view.dtype == DType::kF32 ? 4 : view.dtype == DType::kBF16 ? 2 : 1;
    if (reinterpret_cast<uintptr_t>(view.data) % align == 0)
      return backend_.adopt_weight(view.data, view.bytes);
    void* copy = backend_.allocate(view.bytes);
    w_.owned_.push_back(copy);
    backend_.copy_in(copy, view.data, view.bytes);
    return copy;
  }

  const uint8_t* adopt_scales(const TensorView& view) {
    if (view.bytes == 0) return reinterpret_cast<const uint8_t*>(view.data);
    return static_cast<const uint8_t*>(backend_.adopt_scales(view.name, view.data, view.bytes));
  }

  static std::vector<float> widen(const TensorView& view) {
    std::vector<float> values(static_cast<size_t>(view.elements()));
    for (size_t i = 0; i < values.size(); ++i) {
      if (view.dtype == DType::kF32) {
        std::memcpy(&values[i], view.data + 4 * i, 4);
      } else if (view.dtype == DType::kBF16) {
        uint16_t bits;
        std::memcpy(&bits, view.data + 2 * i, 2);
        values[i] = bf16_value(bits);
      } else {
        fail(ErrorKind::kBadCheckpoint, "{}: dtype {} cannot hold a vector, expected F32 or BF16",
             view.name, dtype_name(view.dtype));
      }
    }
    return values;
  }

  const float* own(const std::vector<float>& values) {
    void* data = backend_.allocate(std::max<size_t>(values.size(), 1) * sizeof(float));
    w_.owned_.push_back(data);
    backend_.copy_in(data, values.data(), values.size() * sizeof(float));
    return static_cast<const float*>(data);
  }

  const ModelConfig& c_;
  const TensorSource& source_;
  const Weights& w_;
  Backend& backend_;
};

Weights::Weights(const ModelConfig& config, const TensorSource& source, Backend& backend,
                 ExpertExchange* exchange_in, TensorGroup* tensors_in)
    : exchange(exchange_in), tensors(tensors_in), backend_(backend) {
  if (tensors) check_split(config);
  WeightBinder bind(config, source, *this);
  embed = bind.matrix("embed");
  head = bind.matrix("head");
  norm = bind.vector("norm.weight");
  layers.reserve(static_cast<size_t>(config.n_layers));
  for (int l = 0; l < config.n_layers; ++l)
    layers.push_back(bind.block("layers." + std::to_string(l), l));
  if (config.has_drafter()) drafter = bind.drafter();
}

std::string Weights::expert_prefix(const ModelConfig& config, int layer, int expert) {
  const bool stage = layer >= config.n_layers;
  return (stage ? "mtp." : "layers.") + std::to_string(stage ? layer - config.n_layers : layer) +
         ".ffn.experts." + std::to_string(expert);
}

Expert Weights::bind_expert(const ModelConfig& config, const TensorSource& source, int layer,
                            int expert) const {
  return WeightBinder(config, source, *this).expert(expert_prefix(config, layer, expert));
}

Weights::~Weights() {
  for (void* data : owned_) backend_.release(data);
}

Numerics Weights::numerics(const TensorSource& source) {
  const TensorView* embed = source.find("embed.weight");
  return embed && embed->dtype == DType::kF32 ? Numerics::kF32 : Numerics::kBF16;
}

}  // namespace peregrine
