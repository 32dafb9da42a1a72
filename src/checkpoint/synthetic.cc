#include "checkpoint/synthetic.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "base/fail.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/weight_scan.h"

namespace peregrine {
namespace {

constexpr size_t kAlignment = 64;
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;

// SplitMix64: the value at a counter.
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// Exponent e with 2^e nearest to 1 / (rms * sqrt(inputs)).
int exponent_for(double rms, int64_t inputs) {
  return static_cast<int>(std::lround(-std::log2(rms * std::sqrt(static_cast<double>(inputs)))));
}

using Pattern = SyntheticPattern;

uint64_t repeat8(uint8_t byte) { return byte * 0x0101010101010101u; }
uint64_t repeat16(uint16_t half) { return half * 0x0001000100010001u; }
uint64_t repeat32(uint32_t word) { return word * 0x0000000100000001u; }

class SyntheticSource : public TensorSource {
 public:
  SyntheticSource(const ModelConfig& config, uint64_t seed) {
    std::vector<Pattern> patterns;
    size_t size = 0;
    for (const TensorSpec& spec : tensor_table(config)) {
      if (spec.optional) continue;
      TensorView view{.name = spec.name, .dtype = spec.dtypes.front(), .shape = spec.shape};
      view.bytes =
          static_cast<size_t>(view.elements()) * static_cast<size_t>(dtype_bits(view.dtype)) / 8;
      offsets_.push_back(size);
      size += (view.bytes + kAlignment - 1) / kAlignment * kAlignment;
      total_bytes_ += view.bytes;
      patterns.push_back(synthetic_pattern(spec, config.fp4_experts));
      tensors_.push_back(std::move(view));
    }
    allocate(size);
    for (size_t i = 0; i < tensors_.size(); ++i) tensors_[i].data = memory_ + offsets_[i];
    fill(patterns, seed);
  }
  ~SyntheticSource() override {
    if (memory_ != nullptr) munmap(memory_, size_);
  }
  SyntheticSource(const SyntheticSource&) = delete;
  SyntheticSource& operator=(const SyntheticSource&) = delete;

  const TensorView* find(std::string_view name) const override {
    const auto at = std::lower_bound(
        tensors_.begin(), tensors_.end(), name,
        [](const TensorView& view, std::string_view key) { return view.name < key; });
    return at != tensors_.end() && at->name == name ? &*at : nullptr;
  }
  std::span<const TensorView> tensors() const override { return tensors_; }
  std::span<const std::string> files() const override { return files_; }
  uint64_t total_bytes() const override { return total_bytes_; }

 private:
  void allocate(size_t size) {
    const uint64_t available = available_memory_bytes();
    if (available > 0 && size > available)
      fail(ErrorKind::kOutOfMemory,
           "synthetic weights of {} bytes do not fit the {} bytes of free memory", size, available);
    void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
      fail(ErrorKind::kOutOfMemory, "no memory for {} bytes of synthetic weights", size);
    madvise(data, size, MADV_HUGEPAGE);
    memory_ = static_cast<std::byte*>(data);
    size_ = size;
  }

  void fill(const std::vector<Pattern>& patterns, uint64_t seed) {
    std::atomic<size_t> next{0};
    const auto work = [&] {
      for (size_t i = next++; i < tensors_.size(); i = next++) {
        // Tensors start aligned and are padded, so whole words may be written.
        auto* words = reinterpret_cast<uint64_t*>(memory_ + offsets_[i]);
        uint64_t counter = mix(seed + kGolden * (i + 1));
        for (size_t w = 0; w < (tensors_[i].bytes + 7) / 8; ++w)
          words[w] = (mix(counter += kGolden) & patterns[i].keep) | patterns[i].set;
      }
    };
    std::vector<std::thread> threads;
    for (unsigned t = 1; t < std::thread::hardware_concurrency(); ++t) threads.emplace_back(work);
    work();
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<TensorView> tensors_;
  std::vector<size_t> offsets_;
  std::vector<std::string> files_{"synthetic weights"};
  uint64_t total_bytes_ = 0;
  std::byte* memory_ = nullptr;
  size_t size_ = 0;
};

}  // namespace

ModelConfig released_config() {
  ModelConfig c;
  c.vocab_size = 129280;
  c.dim = 5120;
  c.n_layers = 40;
  c.n_heads = 64;
  c.head_dim = 512;
  c.rope_head_dim = 64;
  c.q_lora_rank = 1280;
  c.o_lora_rank = 1024;
  c.o_groups = 8;
  c.window_size = 128;
  c.norm_eps = 1e-20f;
  c.max_position = 1048576;
  c.moe_inter_dim = 2304;
  c.n_routed_experts = 384;
  c.n_activated_experts = 6;
  c.route_scale = 1.5f;
  c.swiglu_limit = 10;
  c.rope_theta = 10000;
  c.compress_rope_theta = 160000;
  c.rope_factor = 16;
  c.original_seq_len = 65536;
  c.beta_fast = 32;
  c.beta_slow = 1;
  c.compress_ratios.assign(43, 0);  // layers 0, 1 and the draft stages see their window only
  std::fill_n(c.compress_ratios.begin() + 2, 18, 2);
  std::fill_n(c.compress_ratios.begin() + 20, 20, 1);
  c.kv_source_layers = {2, 8, 14, 20};
  c.index_source_layers = {2, 8, 14, 20, 24, 28, 32, 36};
  c.index_n_heads = 32;
  c.index_head_dim = 128;
  c.index_topk = 512;
  c.candidate_source_layer = 20;
  c.candidate_topk_blocks = 2048;
  c.candidate_block_size = 8;
  c.hc_mult = 4;
  c.hc_sinkhorn_iters = 20;
  c.hc_eps = 1e-6f;
  c.engram_layer_ids = {1, 14};
  c.engram_num_embeddings = {384006168, 384016682};
  c.engram_max_ngram = 4;
  c.engram_vocab_size = 16000000;
  c.engram_n_heads = 8;
  c.engram_head_dim = 256;
  c.engram_pad_id = 2;
  c.engram_compressed_vocab_size = 99092;
  c.n_mtp_layers = 3;
  c.dspark_block_size = 5;
  c.dspark_noise_token_id = 128799;
  c.dspark_target_layer_ids = {37, 38, 39};
  c.dspark_markov_rank = 256;
  c.dspark_n_routed_experts = 128;
  c.dspark_n_activated_experts = 3;
  c.vision_n_layers = 32;
  c.vision_dim = 1024;
  c.vision_n_heads = 16;
  c.vision_inter_dim = 2816;
  c.vision_patch_size = 14;
  c.vision_downsample_ratio = 3;
  c.vision_max_n_token = 1024;
  c.vision_min_pixels = 295936;
  c.vision_rope_theta = 10000;
  c.image_token_id = 129264;
  c.fp8_dense = c.fp4_experts = true;
  return c;
}

ModelConfig synthetic_config(const SyntheticShape& shape) {
  const auto at_least = [](const char* what, int value, int least) {
    if (value < least)
      fail(ErrorKind::kInvalidArgument, "synthetic weights with {} {}: expected at least {}", value,
           what, least);
  };
  at_least("layers", shape.layers, 2);
  at_least("wide stream", shape.dim, 32);
  at_least("heads", shape.heads, 8);
  at_least("wide experts", shape.expert_width, 32);
  at_least("tokens of vocabulary", shape.vocab, 32);
  ModelConfig c = released_config();
  at_least("experts", shape.experts, c.n_activated_experts);
  c.n_layers = shape.layers;
  c.n_routed_experts = shape.experts;
  c.dim = shape.dim;
  c.n_heads = shape.heads;
  c.moe_inter_dim = shape.expert_width;
  c.vocab_size = shape.vocab;
  const int half = shape.layers / 2;  // first decoder layer
  c.compress_ratios.assign(static_cast<size_t>(half), 2);
  c.compress_ratios.resize(static_cast<size_t>(shape.layers), 1);
  c.kv_source_layers = {0, half};
  c.index_source_layers = {0};
  for (int layer = half; layer < shape.layers; layer += 4) c.index_source_layers.push_back(layer);
  c.candidate_source_layer = half;
  c.engram_layer_ids.clear();
  c.engram_num_embeddings.clear();
  c.n_mtp_layers = c.vision_n_layers = 0;
  c.dspark_target_layer_ids.clear();
  c.image_token_id = -1;
  c.validate("synthetic weights");
  return c;
}

SyntheticPattern synthetic_pattern(const TensorSpec& spec, bool fp4_experts) {
  const bool matrix = spec.shape.size() == 2;
  const int64_t inputs = spec.shape.back();
  switch (spec.dtypes.front()) {
    case DType::kF8E4M3:  // sign, 3 mantissa and 2 exponent bits: 0.125 to 1.875
      return {repeat8(0x9F), repeat8(0x20)};
    case DType::kF8E8M0: {
      const bool fp4 = fp4_experts && spec.name.find(".experts.") != std::string::npos;
      const int exponent = exponent_for(fp4 ? 2.9 : 0.8, inputs * 32);
      return {0, repeat8(static_cast<uint8_t>(127 + exponent))};
    }
    case DType::kBF16: {
      if (!matrix) return {0, repeat16(0x3F80)};  // norms: 1.0
      // Rows that are looked up have inputs of 1.
      const bool looked_up = spec.name.find("embed.weight") != std::string::npos;
      const int exponent = exponent_for(1.5, looked_up ? 1 : inputs);
      return {repeat16(0x807F), repeat16(static_cast<uint16_t>((127 + exponent) << 7))};
    }
    case DType::kF32: {
      if (spec.name.ends_with("_scale")) return {0, repeat32(0x3F800000)};
      if (!matrix) return {};
      const auto exponent = static_cast<uint32_t>(127 + exponent_for(1.5, inputs));
      return {repeat32(0x807FFFFF), repeat32(exponent << 23)};
    }
    default:  // FP4: every code is a number
      return {~uint64_t{0}, 0};
  }
}

std::unique_ptr<TensorSource> make_synthetic_source(const ModelConfig& config, uint64_t seed) {
  return std::make_unique<SyntheticSource>(config, seed);
}

}  // namespace peregrine
