#include "synthetic_model.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/fail.h"
#include "checkpoint/checkpoint.h"
#include "fill.h"

namespace peregrine::bench {
namespace {

// Addresses for all tensors, but contents for vectors alone: matrices are made on the device.
class AddressSource : public TensorSource {
 public:
  AddressSource(const ModelConfig& config, SyntheticBackend& backend) {
    std::vector<size_t> offsets;
    std::vector<SyntheticPattern> patterns;
    for (const TensorSpec& spec : tensor_table(config)) {
      if (spec.optional) continue;
      TensorView view{.name = spec.name, .dtype = spec.dtypes.front(), .shape = spec.shape};
      view.bytes =
          static_cast<size_t>(view.elements()) * static_cast<size_t>(dtype_bits(view.dtype)) / 8;
      offsets.push_back(size_);
      size_ += (view.bytes + 255) / 256 * 256;
      patterns.push_back(synthetic_pattern(spec, config.fp4_experts));
      tensors_.push_back(std::move(view));
    }
    void* data = mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) fail(ErrorKind::kOutOfMemory, "no room for {} bytes", size_);
    memory_ = static_cast<std::byte*>(data);
    for (size_t i = 0; i < tensors_.size(); ++i) {
      tensors_[i].data = memory_ + offsets[i];
      backend.expect(tensors_[i].data, patterns[i]);
      if (tensors_[i].shape.size() > 1) continue;
      auto* words = reinterpret_cast<uint64_t*>(memory_ + offsets[i]);
      std::fill_n(words, (tensors_[i].bytes + 7) / 8, patterns[i].set);
    }
  }
  ~AddressSource() override { munmap(memory_, size_); }

  const TensorView* find(std::string_view name) const override {
    const auto at = std::lower_bound(
        tensors_.begin(), tensors_.end(), name,
        [](const TensorView& view, std::string_view key) { return view.name < key; });
    return at != tensors_.end() && at->name == name ? &*at : nullptr;
  }
  std::span<const TensorView> tensors() const override { return tensors_; }
  std::span<const std::string> files() const override { return files_; }
  uint64_t total_bytes() const override { return size_; }

 private:
  std::vector<TensorView> tensors_;
  std::vector<std::string> files_{"synthetic weights"};
  std::byte* memory_ = nullptr;
  size_t size_ = 0;
};

}  // namespace

const char* kind_name(LayerKind kind) {
  switch (kind) {
    case LayerKind::kEncoderSource:
      return "encoder-source";
    case LayerKind::kEncoder:
      return "encoder";
    case LayerKind::kDecoderReuse:
      return "decoder-reuse";
    default:
      return "decoder-reindex";
  }
}

ModelConfig layers_config(LayerKind kind, int count) {
  ModelConfig c = synthetic_config({.layers = 2, .experts = 384});
  const bool encoder = kind == LayerKind::kEncoder || kind == LayerKind::kEncoderSource;
  c.n_layers = 2 + count;
  c.compress_ratios.assign(static_cast<size_t>(encoder ? 1 + count : 1), 2);
  c.compress_ratios.resize(static_cast<size_t>(c.n_layers), 1);
  const int split = encoder ? 1 + count : 1;
  c.kv_source_layers = {0};
  c.index_source_layers = {0};
  for (int l = 1; l <= count && kind == LayerKind::kEncoderSource; ++l) {
    c.kv_source_layers.push_back(l);
    c.index_source_layers.push_back(l);
  }
  c.kv_source_layers.push_back(split);
  c.index_source_layers.push_back(split);
  for (int l = 0; l < count && kind == LayerKind::kDecoderReindex; ++l)
    c.index_source_layers.push_back(split + 1 + l);
  c.candidate_source_layer = split;
  c.validate("benchmark");
  return c;
}

const void* SyntheticBackend::adopt_weight(const void* host, size_t bytes) {
  const SyntheticPattern pattern = patterns_.at(host);
  void* data = allocate((bytes + 7) / 8 * 8);
  fill(stream(), data, (bytes + 7) / 8 * 8, seed_++ << 32, pattern.keep, pattern.set);
  return data;
}

SyntheticModel::SyntheticModel(const ModelConfig& c, int max_context, int max_rows, int slots)
    : config(c) {
  config.max_position = max_context;
  backend = std::make_unique<SyntheticBackend>(config, Numerics::kBF16, 0.95);
  source = std::make_unique<AddressSource>(config, *backend);
  weights.emplace(config, *source, *backend);
  state.emplace(*backend, config,
                StateOptions{.slots = slots, .max_context = max_context, .slack = 256});
  forward.emplace(*backend, config, *weights, nullptr, *state, max_rows);
  for (int slot = 0; slot < slots; ++slot) {
    const int got = state->acquire();
    if (!state->reserve(got, max_context, 0)) fail(ErrorKind::kOutOfMemory, "no pages");
  }
  state->apply(state->take_updates());
  const KvView& kv = state->view();
  const int head = config.head_dim;
  // Window rows: e4m3 codes below 2 in size, scales 2^-3 .. 1.
  fill_rows(backend->stream(), kv.rings,
            static_cast<size_t>(slots) * static_cast<size_t>(kv.ring_layers) *
                static_cast<size_t>(kv.ring_rows),
            head, head / 32, 0x03, 124, 0xBF);
  const auto pages = static_cast<size_t>(state->pool().capacity());
  for (size_t page = 0; page < pages; ++page) {
    uint8_t* at = kv.pages + page * kv.page_bytes;
    const auto rows = static_cast<size_t>(kv.rows_per_page);
    fill_rows(backend->stream(), at, rows, head / 2, head / 16, 0x07, 0x30, 0xFF);
    fill_rows(backend->stream(), at + rows * kv.main_row_bytes, rows, config.index_head_dim / 2,
              config.index_head_dim / 32, 0x03, 124, 0xFF);
    // Rows must differ between pages: stir the codes of the index rows.
    const size_t stir = rows * kv.index_row_bytes / 8 * 8;
    fill(backend->stream(), at + rows * kv.main_row_bytes, stir, page << 20, 0x7B7B7B7B7B7B7B7Bu,
         0);
  }
  tokens_.resize(static_cast<size_t>(max_context));
  for (size_t i = 0; i < tokens_.size(); ++i)
    tokens_[i] =
        static_cast<int32_t>((i * 2654435761u >> 7) % static_cast<size_t>(config.vocab_size));
  backend->synchronize();
}

void SyntheticModel::step(int context, int rows, bool all_logits) {
  Step step;
  step.segments.push_back({.slot = 0,
                           .start = context,
                           .count = rows,
                           .tokens = tokens_,
                           .decoder_start = context,
                           .logits = all_logits ? rows : 1});
  std::vector<SegmentRows> where;
  forward->run(step, false, where);
}

double SyntheticModel::step_ms(int context, int rows, int batch, int repeats, bool all_logits) {
  for (int i = 0; i < 3; ++i) step(context, rows, all_logits);
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<double> times;
  for (int r = 0; r < repeats; ++r) {
    cudaEventRecord(begin, backend->stream());
    for (int i = 0; i < batch; ++i) step(context, rows, all_logits);
    cudaEventRecord(end, backend->stream());
    cudaEventSynchronize(end);
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    times.push_back(ms / batch);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return median(times);
}

double SyntheticModel::distinct_experts(int context, int rows) {
  double total = 0;
  forward->hooks.after_routing = [&](int, Tensor ids) {
    std::vector<int32_t> all(static_cast<size_t>(ids.rows * ids.cols));
    backend->copy_out(all.data(), ids.data, ids.bytes());
    total += static_cast<double>(std::set<int32_t>(all.begin(), all.end()).size());
  };
  step(context, rows);
  backend->synchronize();
  forward->hooks.after_routing = nullptr;
  return total / config.n_layers;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace peregrine::bench
