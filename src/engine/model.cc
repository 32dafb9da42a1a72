#include "peregrine/model.h"

#include <openssl/sha.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <span>

#include "base/hex.h"
#include "engine/model_impl.h"
#include "text/token_map.h"

namespace peregrine {
namespace {

constexpr size_t kSampleBytes = 16;

// FNV-1a over what a state depends on: the tensor table with bytes from the start, the middle and
// the end of each tensor, which tell checkpoints of one shape apart without reading them.
uint64_t fingerprint_of(const Checkpoint& checkpoint) {
  uint64_t hash = 14695981039346656037u;
  const auto add = [&](const void* data, size_t bytes) {
    const auto* p = static_cast<const uint8_t*>(data);
    for (size_t i = 0; i < bytes; ++i) hash = (hash ^ p[i]) * 1099511628211u;
  };
  for (const TensorView& tensor : checkpoint.source->tensors()) {
    add(tensor.name.data(), tensor.name.size());
    add(tensor.shape.data(), tensor.shape.size() * sizeof(int64_t));
    const size_t sample = std::min<size_t>(tensor.bytes, kSampleBytes);
    const auto* bytes = static_cast<const uint8_t*>(static_cast<const void*>(tensor.data));
    for (const size_t at : {size_t{0}, (tensor.bytes - sample) / 2, tensor.bytes - sample})
      add(bytes + at, sample);
  }
  return hash;
}

std::string identity_of(const std::string& folder) {
  std::string identity;
  for (const char* name : {"/config.json", "/tokenizer.json"}) {
    std::ifstream file(folder + name, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    unsigned char hash[SHA256_DIGEST_LENGTH];
    SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), hash);
    identity += to_hex(std::as_bytes(std::span(hash)));
  }
  return identity;
}

// The bytes of a tensor that this rank holds.
std::span<const std::byte> held_bytes(const ModelConfig& config, const ExpertExchange* exchange,
                                      const TensorGroup* tensors, const TensorView& view) {
  if (tensors) {
    const TensorView held = tensors->split().held(config, view);
    return {held.data, held.bytes};
  }
  const std::span<const std::byte> all(view.data, view.bytes);
  const auto routed = routed_expert_of(config, view.name);
  if (!exchange || !routed) return all;
  return exchange->held(routed->of).holds(routed->expert) ? all : all.first(0);
}

}  // namespace

Model::Impl::Impl(Checkpoint opened, Tokenizer loaded, const LoadOptions& options,
                  ExpertExchange* exchange, TensorGroup* tensors)
    : checkpoint(std::move(opened)),
      tokenizer(std::move(loaded)),
      backend(make_backend(
          options.device, checkpoint.config, Weights::numerics(*checkpoint.source),
          {.threads = options.threads, .gpu_memory_fraction = options.gpu_memory_fraction})),
      weights(checkpoint.config, *checkpoint.source, *backend, exchange, tensors),
      fingerprint(fingerprint_of(checkpoint)),
      identity(identity_of(checkpoint.path)) {
  const ModelConfig& c = checkpoint.config;
  if (c.has_engram())
    hasher.emplace(
        c, make_token_map(tokenizer, c.vocab_size, c.engram_pad_id, c.engram_compressed_vocab_size)
               .ids);
  if (hasher && tensors) hasher->keep(tensors->split().engram_columns(c));
}

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;

std::shared_ptr<const Model> Model::load(const std::string& path, const LoadOptions& options) {
  return Impl::load(path, options, nullptr);
}

std::shared_ptr<const Model> Model::Impl::load(const std::string& path, const LoadOptions& options,
                                               ExpertExchange* exchange, TensorGroup* tensors) {
  // The tokenizer first: it is small, and a bad one should not cost a walk over the weights.
  Tokenizer tokenizer = Tokenizer::load(path);
  CheckpointOptions open{.on_progress = options.on_progress};
  if (exchange || tensors)
    open.used = [=](const ModelConfig& config, const TensorView& view) {
      return held_bytes(config, exchange, tensors, view);
    };
  Checkpoint checkpoint = Checkpoint::open(path, open);
  return std::shared_ptr<const Model>(new Model(std::make_unique<Impl>(
      std::move(checkpoint), std::move(tokenizer), options, exchange, tensors)));
}

int Model::vocab_size() const { return impl_->config().vocab_size; }
int Model::max_context() const { return impl_->config().max_position; }
bool Model::has_drafter() const { return impl_->config().has_drafter(); }
std::string Model::device_name() const { return impl_->backend->name(); }
uint64_t Model::weight_bytes() const { return impl_->checkpoint.source->total_bytes(); }

std::vector<int32_t> Model::encode(std::string_view text) const {
  return impl_->tokenizer.encode(text, SpecialTokens::kRecognise);
}
std::string Model::decode(std::span<const int32_t> ids) const {
  return impl_->tokenizer.decode(ids);
}

}  // namespace peregrine
