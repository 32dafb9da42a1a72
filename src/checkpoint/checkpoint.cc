#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/fail.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/weight_scan.h"

namespace peregrine {
namespace {

namespace fs = std::filesystem;

// Another source under the released names, without the tensors that the table does not keep.
class RenamedSource : public TensorSource {
 public:
  explicit RenamedSource(std::unique_ptr<TensorSource> inner) : inner_(std::move(inner)) {
    for (const TensorView& view : inner_->tensors()) {
      TensorView renamed = view;
      renamed.name = released_name(view.name);
      if (is_shared_alias(renamed.name)) continue;
      total_bytes_ += renamed.bytes;
      tensors_.push_back(std::move(renamed));
    }
    std::sort(tensors_.begin(), tensors_.end(),
              [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
    for (size_t i = 1; i < tensors_.size(); ++i) {
      if (tensors_[i].name == tensors_[i - 1].name) {
        fail(ErrorKind::kBadCheckpoint,
             "{}: two tensors mean '{}', one of them under another convention of names",
             inner_->files()[tensors_[i].shard], printable(tensors_[i].name));
      }
    }
  }

  const TensorView* find(std::string_view name) const override {
    const auto at = std::lower_bound(
        tensors_.begin(), tensors_.end(), name,
        [](const TensorView& view, std::string_view key) { return view.name < key; });
    return at != tensors_.end() && at->name == name ? &*at : nullptr;
  }
  std::span<const TensorView> tensors() const override { return tensors_; }
  std::span<const std::string> files() const override { return inner_->files(); }
  uint64_t total_bytes() const override { return total_bytes_; }

 private:
  // Some conversions repeat the backbone's embedding and head under every draft stage.
  static bool is_shared_alias(const std::string& name) {
    return name.starts_with("mtp.") && std::count(name.begin(), name.end(), '.') == 3 &&
           (name.ends_with(".embed.weight") || name.ends_with(".head.weight"));
  }

  std::unique_ptr<TensorSource> inner_;
  std::vector<TensorView> tensors_;
  uint64_t total_bytes_ = 0;
};

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

// Large, and touched a little at a time by each token.
bool is_bulk(const TensorView& view) {
  return view.name.find(".experts.") != std::string::npos ||
         view.name.find(".engram.embed.") != std::string::npos;
}

}  // namespace

std::string released_name(const std::string& name) {
  std::string text = name.starts_with("model.") ? name.substr(6) : name;
  if (!text.starts_with("layers.") && !text.starts_with("mtp.")) return text;
  replace_all(text, ".self_attn.", ".attn.");
  replace_all(text, ".mlp.", ".ffn.");
  replace_all(text, ".weight_scale_inv", ".scale");
  replace_all(text, ".e_score_correction_bias", ".bias");
  return text;
}

Checkpoint Checkpoint::open(const std::string& path, const CheckpointOptions& options) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    fail(ErrorKind::kIo, "{}: is not a directory, expected one that holds a checkpoint", path);
  }
  Checkpoint checkpoint;
  checkpoint.path = path;
  checkpoint.config = ModelConfig::load(path);
  checkpoint.source = std::make_unique<RenamedSource>(TensorSource::open(path));
  const TensorSource& source = *checkpoint.source;
  check_tensors(checkpoint.config, source, path);

  // A tenth stays free for state and scratch.
  const uint64_t memory =
      options.memory_bytes > 0 ? options.memory_bytes : available_memory_bytes() / 10 * 9;
  std::vector<WeightRange> ranges;
  uint64_t bytes = 0;
  for (const TensorView& view : source.tensors()) {
    const auto used = options.used ? options.used(checkpoint.config, view)
                                   : std::span<const std::byte>(view.data, view.bytes);
    if (used.empty()) continue;
    ranges.push_back({&view, used});
    bytes += used.size();
  }
  checkpoint.resident = bytes <= memory;
  if (!checkpoint.resident)
    std::erase_if(ranges, [](const WeightRange& range) {
      return range.view->dtype != DType::kF8E8M0 || is_bulk(*range.view);
    });
  scan_weights(source, std::move(ranges), options.on_progress);
  return checkpoint;
}

const TensorView& Checkpoint::tensor(const std::string& name) const {
  const TensorView* view = source->find(name);
  if (view == nullptr) fail(ErrorKind::kBadCheckpoint, "{}: has no tensor '{}'", path, name);
  return *view;
}

}  // namespace peregrine
