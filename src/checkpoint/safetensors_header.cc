#include "checkpoint/safetensors_header.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "base/fail.h"

namespace peregrine {
namespace {

using nlohmann::json;

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  int bits;
};

constexpr std::array<DTypeInfo, 13> kDTypes = {{
    {DType::kF64, "F64", 64},
    {DType::kF32, "F32", 32},
    {DType::kF16, "F16", 16},
    {DType::kBF16, "BF16", 16},
    {DType::kF8E4M3, "F8_E4M3", 8},
    {DType::kF8E8M0, "F8_E8M0", 8},
    {DType::kF4, "F4", 4},
    {DType::kI64, "I64", 64},
    {DType::kI32, "I32", 32},
    {DType::kI16, "I16", 16},
    {DType::kI8, "I8", 8},
    {DType::kU8, "U8", 8},
    {DType::kBool, "BOOL", 8},
}};

// A tensor as the header describes it; offsets count from the start of the data part.
struct HeaderEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;
  int n_offsets = 0;  // how many of the two were given
  bool has_dtype = false, has_shape = false, has_offsets = false;
};

[[noreturn]] void offsets_count(const HeaderEntry& entry, const std::string& file) {
  fail(ErrorKind::kBadCheckpoint, "{}: tensor '{}' has data_offsets that are not two numbers", file,
       printable(entry.name));
}

// No real tensor has more axes; the limit keeps messages and copies short.
constexpr size_t kMaxAxes = 16;

// Collects HeaderEntry values from the token stream, so that no document tree is built.
// Levels: 0 outside, 1 the header object, 2 one tensor or __metadata__, 3 an array of numbers.
class HeaderHandler : public nlohmann::json_sax<json> {
 public:
  explicit HeaderHandler(const std::string& file) : file_(file) {}
  std::vector<HeaderEntry> take() { return std::move(entries_); }

  bool start_object(size_t) override {
    if (level_ == 0 || (level_ == 1)) {
      if (level_ == 1 && !in_metadata_) entries_.emplace_back().name = std::move(tensor_);
      ++level_;
      return true;
    }
    return unexpected("an object");
  }
  bool key(std::string& key) override {
    if (level_ == 1) {
      in_metadata_ = key == "__metadata__";
      tensor_ = key;
    } else {
      field_ = key;
    }
    return true;
  }
  bool end_object() override {
    if (level_ == 2 && !in_metadata_) {
      const HeaderEntry& entry = entries_.back();
      if (!entry.has_dtype) missing("dtype");
      if (!entry.has_shape) missing("shape");
      if (!entry.has_offsets) missing("data_offsets");
    }
    --level_;
    return true;
  }
  bool start_array(size_t) override {
    if (level_ != 2 || in_metadata_) return unexpected("an array");
    HeaderEntry& entry = entries_.back();
    if (field_ == "shape") {
      if (std::exchange(entry.has_shape, true)) repeated();
    } else if (field_ == "data_offsets") {
      if (std::exchange(entry.has_offsets, true)) repeated();
    } else {
      return unexpected("an array");
    }
    ++level_;
    return true;
  }
  bool end_array() override {
    --level_;
    return true;
  }
  bool string(std::string& text) override {
    if (level_ == 2 && in_metadata_) return true;
    if (level_ != 2 || field_ != "dtype") return unexpected("a string");
    HeaderEntry& entry = entries_.back();
    if (std::exchange(entry.has_dtype, true)) repeated();
    entry.dtype = parse_dtype(text, entry.name, file_);
    return true;
  }
  bool number_unsigned(uint64_t value) override {
    if (level_ != 3) return unexpected("a number");
    HeaderEntry& entry = entries_.back();
    if (field_ == "data_offsets") {
      if (entry.n_offsets == 2) offsets_count(entry, file_);
      (entry.n_offsets++ == 0 ? entry.begin : entry.end) = value;
      return true;
    }
    if (value > static_cast<uint64_t>(INT64_MAX)) {
      fail(ErrorKind::kBadCheckpoint, "{}: tensor '{}' has a side of {}, expected less than 2^63",
           file_, printable(entry.name), value);
    }
    if (entry.shape.size() == kMaxAxes) {
      fail(ErrorKind::kBadCheckpoint, "{}: tensor '{}' has more than {} axes", file_,
           printable(entry.name), kMaxAxes);
    }
    entry.shape.push_back(static_cast<int64_t>(value));
    return true;
  }
  bool number_integer(int64_t value) override {
    if (level_ != 3) return unexpected("a number");
    fail(ErrorKind::kBadCheckpoint, "{}: tensor '{}' has {} in its {}, expected no negative number",
         file_, printable(entries_.back().name), value, field_);
  }
  bool number_float(double, const std::string& text) override {
    return unexpected(fmt::format("the number {}", printable(text)));
  }
  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool binary(json::binary_t&) override { return unexpected("binary data"); }
  bool parse_error(size_t position, const std::string&, const json::exception&) override {
    fail(ErrorKind::kBadCheckpoint, "{}: the header is not valid JSON at its byte {}", file_,
         position);
  }

 private:
  [[noreturn]] bool unexpected(std::string_view what) const {
    if (level_ == 0) {
      fail(ErrorKind::kBadCheckpoint, "{}: the header is {}, expected a JSON object", file_, what);
    }
    if (level_ == 1) {
      fail(ErrorKind::kBadCheckpoint, "{}: header entry '{}' is {}, expected an object", file_,
           printable(tensor_), what);
    }
    fail(ErrorKind::kBadCheckpoint,
         "{}: header entry '{}' holds {} under '{}', expected only dtype, shape and data_offsets",
         file_, in_metadata_ ? "__metadata__" : printable(entries_.back().name), what,
         printable(field_));
  }
  [[noreturn]] void missing(std::string_view field) const {
    fail(ErrorKind::kBadCheckpoint, "{}: tensor '{}' has no {}", file_,
         printable(entries_.back().name), field);
  }
  [[noreturn]] void repeated() const {
    fail(ErrorKind::kBadCheckpoint, "{}: tensor '{}' states its {} twice", file_,
         printable(entries_.back().name), field_);
  }

  const std::string& file_;
  std::vector<HeaderEntry> entries_;
  std::string tensor_, field_;
  int level_ = 0;
  bool in_metadata_ = false;
};

// Every entry's range has the size its shape asks for and lies inside the data part.
void check_entry(const HeaderEntry& entry, uint64_t data_bytes, const std::string& file) {
  if (entry.n_offsets != 2) offsets_count(entry, file);
  const uint64_t begin = entry.begin, end = entry.end;
  if (begin > end || end > data_bytes) {
    fail(ErrorKind::kBadCheckpoint,
         "{}: tensor '{}' has data offsets {} to {}, which do not lie inside the {} data bytes of "
         "the file (is it truncated?)",
         file, printable(entry.name), begin, end, data_bytes);
  }
  const uint64_t expected = tensor_bytes(entry.dtype, entry.shape, entry.name, file);
  if (end - begin != expected) {
    fail(ErrorKind::kBadCheckpoint,
         "{}: tensor '{}' has {} bytes of data, but its dtype {} and shape need {}", file,
         printable(entry.name), end - begin, dtype_name(entry.dtype), expected);
  }
}

void check_unique(const std::vector<HeaderEntry>& entries, const std::string& file) {
  std::vector<std::string_view> names;
  names.reserve(entries.size());
  for (const HeaderEntry& entry : entries) names.push_back(entry.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) {
    fail(ErrorKind::kBadCheckpoint, "{}: tensor '{}' is described twice", file, printable(*twice));
  }
}

// Entries are in the order of their data: each must begin where the one before it ended.
void check_cover(const std::vector<HeaderEntry>& entries, uint64_t data_bytes,
                 const std::string& file) {
  uint64_t covered = 0;
  for (const HeaderEntry& entry : entries) {
    const uint64_t begin = entry.begin;
    if (begin < covered) {
      fail(ErrorKind::kBadCheckpoint,
           "{}: tensor '{}' begins at data byte {} and overlaps the tensor that ends at {}", file,
           printable(entry.name), begin, covered);
    }
    if (begin > covered) {
      fail(ErrorKind::kBadCheckpoint,
           "{}: {} data bytes before tensor '{}' belong to no tensor, expected no hole", file,
           begin - covered, printable(entry.name));
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    fail(ErrorKind::kBadCheckpoint,
         "{}: the last {} bytes belong to no tensor, expected the file to end with its data", file,
         data_bytes - covered);
  }
}

uint64_t read_header_length(std::string_view file, const std::string& name) {
  if (file.size() < 8) {
    fail(ErrorKind::kBadCheckpoint, "{}: has {} bytes, too few for a safetensors file", name,
         file.size());
  }
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<uint8_t>(file[i]);
  if (length > file.size() - 8) {
    fail(ErrorKind::kBadCheckpoint, "{}: states a header of {} bytes, but only {} follow", name,
         length, file.size() - 8);
  }
  if (length > kMaxHeaderBytes) {
    fail(ErrorKind::kBadCheckpoint, "{}: states a header of {} bytes, expected at most {}", name,
         length, kMaxHeaderBytes);
  }
  return length;
}

}  // namespace

std::string_view dtype_name(DType dtype) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.dtype == dtype) return info.name;
  }
  fail(ErrorKind::kInternal, "dtype {} has no name", static_cast<int>(dtype));
}

int dtype_bits(DType dtype) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.dtype == dtype) return info.bits;
  }
  fail(ErrorKind::kInternal, "dtype {} has no size", static_cast<int>(dtype));
}

DType parse_dtype(std::string_view text, std::string_view tensor, std::string_view file) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.name == text) return info.dtype;
  }
  fail(ErrorKind::kBadCheckpoint,
       "{}: tensor '{}' has the unknown dtype '{}', expected F64, F32, F16, BF16, F8_E4M3, "
       "F8_E8M0, F4, I64, I32, I16, I8, U8 or BOOL",
       file, printable(tensor), printable(text));
}

uint64_t tensor_bytes(DType dtype, const std::vector<int64_t>& shape, std::string_view tensor,
                      std::string_view file) {
  uint64_t bits = static_cast<uint64_t>(dtype_bits(dtype));
  bool overflow = false;
  for (const int64_t side : shape) {
    if (side < 0) {
      fail(ErrorKind::kBadCheckpoint, "{}: tensor '{}' has a side of {}, expected no negative one",
           file, printable(tensor), side);
    }
    overflow |= __builtin_mul_overflow(bits, static_cast<uint64_t>(side), &bits);
  }
  // A zero side empties the tensor whatever the others are, yet a product beyond 64 bits before it
  // is no shape anyone means.
  if (overflow) {
    fail(ErrorKind::kBadCheckpoint, "{}: tensor '{}' has a shape whose size overflows 64 bits",
         file, printable(tensor));
  }
  if (bits % 8 != 0) {
    fail(ErrorKind::kBadCheckpoint,
         "{}: tensor '{}' has an odd number of F4 values, expected whole bytes", file,
         printable(tensor));
  }
  return bits / 8;
}

std::string printable(std::string_view name) {
  constexpr size_t kLimit = 160;
  std::string_view shown = name.substr(0, kLimit);
  if (shown.size() < name.size()) {  // cut between characters of UTF-8
    while (!shown.empty() && (name[shown.size()] & 0xC0) == 0x80) shown.remove_suffix(1);
  }
  std::string text;
  for (const char c : shown) {
    const auto byte = static_cast<unsigned char>(c);
    text += byte < 0x20 || byte == 0x7F ? '?' : c;
  }
  if (shown.size() < name.size()) text += "...";
  return text;
}

std::vector<TensorView> parse_safetensors(std::string_view file,
                                          const std::string& name_for_errors) {
  const uint64_t header_bytes = read_header_length(file, name_for_errors);
  const std::string_view header = file.substr(8, header_bytes);
  const std::string_view data = file.substr(8 + header_bytes);

  HeaderHandler handler(name_for_errors);
  json::sax_parse(header.begin(), header.end(), &handler);
  std::vector<HeaderEntry> entries = handler.take();
  for (const HeaderEntry& entry : entries) check_entry(entry, data.size(), name_for_errors);
  check_unique(entries, name_for_errors);
  std::sort(entries.begin(), entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  check_cover(entries, data.size(), name_for_errors);

  std::vector<TensorView> views;
  views.reserve(entries.size());
  for (HeaderEntry& entry : entries) {
    TensorView view;
    view.name = std::move(entry.name);
    view.dtype = entry.dtype;
    view.shape = std::move(entry.shape);
    view.data = reinterpret_cast<const std::byte*>(data.data()) + entry.begin;
    view.bytes = entry.end - entry.begin;
    views.push_back(std::move(view));
  }
  return views;
}

}  // namespace peregrine
