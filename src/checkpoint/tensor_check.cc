// Comparing the tensors of a file with the table of its config.
#include <algorithm>
#include <string>
#include <vector>

#include "base/fail.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors_header.h"

namespace peregrine {
namespace {

// Differences, of which the sentence quotes the first few.
class Differences {
 public:
  void add(std::string text) {
    if (quoted_.size() < kQuoted) quoted_.push_back(std::move(text));
    ++count_;
  }
  void raise(const std::string& path) const {
    if (count_ == 0) return;
    std::string rest;
    if (count_ > quoted_.size()) rest = fmt::format("; and {} more", count_ - quoted_.size());
    fail(ErrorKind::kBadCheckpoint, "{}: does not have the tensors its config asks for: {}{}", path,
         fmt::join(quoted_, "; "), rest);
  }

 private:
  static constexpr size_t kQuoted = 5;
  std::vector<std::string> quoted_;
  size_t count_ = 0;
};

std::string dtype_list(const std::vector<DType>& dtypes) {
  std::vector<std::string_view> names;
  for (const DType dtype : dtypes) names.push_back(dtype_name(dtype));
  return fmt::format("{}", fmt::join(names, " or "));
}

bool is_wide(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF32; }

// A scale is there exactly when its weight needs one; other tensors unless they are optional.
bool is_required(const TensorSpec& spec, const TensorSource& source) {
  if (!spec.is_scale) return !spec.optional;
  const std::string stem = spec.name.substr(0, spec.name.size() - std::string(".scale").size());
  const TensorView* weight = source.find(stem + ".weight");
  return weight == nullptr || !is_wide(weight->dtype);
}

void compare(const TensorSpec& spec, const TensorView& view, Differences& differences) {
  if (std::find(spec.dtypes.begin(), spec.dtypes.end(), view.dtype) == spec.dtypes.end()) {
    differences.add(fmt::format("'{}' has dtype {}, expected {}", spec.name, dtype_name(view.dtype),
                                dtype_list(spec.dtypes)));
    return;
  }
  std::vector<int64_t> expected = spec.shape;
  if (view.dtype == DType::kF4) expected.back() *= 2;
  if (view.shape != expected) {
    differences.add(fmt::format("'{}' has shape {}, expected [{}]", spec.name, view.shape_text(),
                                fmt::join(expected, ", ")));
  }
}

}  // namespace

// Both sides are ordered by name, so one walk finds every difference.
void check_tensors(const ModelConfig& config, const TensorSource& source, const std::string& path) {
  const std::vector<TensorSpec> table = tensor_table(config);
  const std::span<const TensorView> views = source.tensors();
  Differences differences;
  size_t at = 0;
  const auto add_extra = [&](const TensorView& view) {
    differences.add(fmt::format("'{}' {} {} is not part of this model", printable(view.name),
                                dtype_name(view.dtype), view.shape_text()));
  };
  for (const TensorSpec& spec : table) {
    while (at < views.size() && views[at].name < spec.name) add_extra(views[at++]);
    const bool present = at < views.size() && views[at].name == spec.name;
    const bool required = is_required(spec, source);
    if (!present) {
      if (required) {
        differences.add(fmt::format("'{}' {} [{}] is missing", spec.name, dtype_list(spec.dtypes),
                                    fmt::join(spec.shape, ", ")));
      }
      continue;
    }
    if (spec.is_scale && !required) {
      add_extra(views[at++]);
    } else {
      compare(spec, views[at++], differences);
    }
  }
  while (at < views.size()) add_extra(views[at++]);
  differences.raise(path);
}

}  // namespace peregrine
