#include "checkpoint/safetensors.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "base/fail.h"
#include "checkpoint/json_object.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/safetensors_header.h"

namespace peregrine {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";

class MappedSource : public TensorSource {
 public:
  void add_file(const std::string& path) {
    mappings_.emplace_back(path);
    std::vector<TensorView> views = parse_safetensors(mappings_.back().contents(), path);
    for (TensorView& view : views) {
      view.shard = static_cast<int>(files_.size());
      total_bytes_ += view.bytes;
      tensors_.push_back(std::move(view));
    }
    files_.push_back(path);
  }

  // Call once, after the last add_file.
  void finish() {
    std::sort(tensors_.begin(), tensors_.end(),
              [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
    const auto twice = std::adjacent_find(
        tensors_.begin(), tensors_.end(),
        [](const TensorView& a, const TensorView& b) { return a.name == b.name; });
    if (twice != tensors_.end()) {
      fail(ErrorKind::kBadCheckpoint, "tensor '{}' is in both {} and {}, expected it once",
           printable(twice->name), files_[twice->shard], files_[(twice + 1)->shard]);
    }
  }

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
  std::vector<MappedFile> mappings_;
  std::vector<std::string> files_;
  std::vector<TensorView> tensors_;
  uint64_t total_bytes_ = 0;
};

// weight_map of an index file: tensor name -> shard file name.
std::unordered_map<std::string, std::string> read_index(const std::string& path) {
  const MappedFile file(path);
  const std::string_view text = file.contents();
  const json index = parse_json_object(text, path);
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object() || map->empty()) {
    fail(ErrorKind::kBadCheckpoint, "{}: has no weight_map of tensor names to files", path);
  }
  std::unordered_map<std::string, std::string> shards;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string()) {
      fail(ErrorKind::kBadCheckpoint, "{}: tensor '{}' maps to {}, expected a file name", path,
           printable(tensor), shard.type_name());
    }
    // A shard lies beside its index; a path could lead anywhere.
    const auto& name = shard.get_ref<const std::string&>();
    if (name.empty() || name == "." || name == ".." ||
        name.find_first_of({"/\0", 2}) != name.npos) {
      fail(ErrorKind::kBadCheckpoint, "{}: tensor '{}' maps to '{}', expected a plain file name",
           path, printable(tensor), printable(name));
    }
    shards.emplace(tensor, name);
  }
  return shards;
}

// Every tensor lies in the file the index names, and the files hold nothing the index does not
// know.
void check_against_index(const MappedSource& source,
                         const std::unordered_map<std::string, std::string>& index,
                         const fs::path& directory) {
  for (const auto& [tensor, shard] : index) {
    const TensorView* view = source.find(tensor);
    const std::string expected = (directory / shard).string();
    if (view == nullptr || source.files()[view->shard] != expected) {
      fail(ErrorKind::kBadCheckpoint, "{}: does not hold tensor '{}', which {} places there",
           expected, printable(tensor), kIndexName);
    }
  }
  for (const TensorView& view : source.tensors()) {
    if (!index.contains(view.name)) {
      fail(ErrorKind::kBadCheckpoint, "{}: holds tensor '{}', which {} does not list",
           source.files()[view.shard], printable(view.name), kIndexName);
    }
  }
}

}  // namespace

int64_t TensorView::elements() const {
  int64_t count = 1;
  for (const int64_t side : shape) count *= side;
  return count;
}

std::string TensorView::shape_text() const { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::unique_ptr<TensorSource> TensorSource::open(const std::string& path) {
  auto source = std::make_unique<MappedSource>();
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    source->add_file(path);
    source->finish();
    return source;
  }
  const fs::path directory(path);
  if (fs::exists(directory / kIndexName, ignored)) {
    const auto index = read_index((directory / kIndexName).string());
    std::vector<std::string> shards;
    for (const auto& [tensor, shard] : index) shards.push_back(shard);
    std::sort(shards.begin(), shards.end());
    shards.erase(std::unique(shards.begin(), shards.end()), shards.end());
    for (const std::string& shard : shards) source->add_file((directory / shard).string());
    source->finish();
    check_against_index(*source, index, directory);
    return source;
  }
  if (!fs::exists(directory / kSingleName, ignored)) {
    fail(ErrorKind::kIo, "{}: holds neither {} nor {}", path, kIndexName, kSingleName);
  }
  source->add_file((directory / kSingleName).string());
  source->finish();
  return source;
}

}  // namespace peregrine
