#include "checkpoint/json_object.h"

#include <cmath>
#include <utility>

#include "base/fail.h"
#include "checkpoint/safetensors_header.h"

namespace peregrine {

using nlohmann::json;

namespace {

// Refuses a key that an object holds twice; the document tree would silently keep the last one.
class RepeatedKeys : public nlohmann::json_sax<json> {
 public:
  explicit RepeatedKeys(const std::string& file) : file_(file) {}

  bool start_object(size_t) override {
    open_.emplace_back();
    return true;
  }
  bool key(std::string& key) override {
    if (!open_.back().insert(key).second) {
      fail(ErrorKind::kBadCheckpoint, "{}: has the key '{}' twice in one object", file_,
           printable(key));
    }
    return true;
  }
  bool end_object() override {
    open_.pop_back();
    return true;
  }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(json::binary_t&) override { return true; }
  bool parse_error(size_t, const std::string&, const json::exception&) override { return false; }

 private:
  const std::string& file_;
  std::vector<std::set<std::string>> open_;  // keys of the objects that enclose the position
};

// A value for a message. Writing out nested ones would recurse as deep as the file nests.
std::string describe(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) {
    for (const json& item : value) {
      if (item.is_structured()) return "a nested array";
    }
  }
  return printable(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

}  // namespace

JsonObject::JsonObject(const json& object, std::string file, std::string prefix)
    : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}

const json& JsonObject::value(const std::string& key) {
  known_.insert(key);
  const auto at = object_.find(key);
  if (at == object_.end()) {
    fail(ErrorKind::kBadCheckpoint, "{}: has no key '{}{}', which is required", file_, prefix_,
         key);
  }
  return *at;
}

void JsonObject::refuse(const std::string& key, const std::string& expected) const {
  const auto at = object_.find(key);
  const std::string found = at == object_.end() ? "absent" : describe(*at);
  fail(ErrorKind::kBadCheckpoint, "{}: '{}{}' is {}, expected {}", file_, prefix_, key, found,
       expected);
}

int64_t JsonObject::integer(const std::string& key, int64_t low, int64_t high) {
  const json& found = value(key);
  // An unsigned value beyond int64 would wrap; it is above every limit used here.
  const bool fits = found.is_number_integer() &&
                    !(found.is_number_unsigned() && found.get<uint64_t>() > INT64_MAX) &&
                    found.get<int64_t>() >= low && found.get<int64_t>() <= high;
  if (!fits) refuse(key, fmt::format("an integer from {} to {}", low, high));
  return found.get<int64_t>();
}

double JsonObject::number(const std::string& key, double low, double high) {
  const json& found = value(key);
  if (!found.is_number() || !std::isfinite(found.get<double>()) || found.get<double>() < low ||
      found.get<double>() > high) {
    refuse(key, fmt::format("a number from {:g} to {:g}", low, high));
  }
  return found.get<double>();
}

bool JsonObject::boolean(const std::string& key) {
  const json& found = value(key);
  if (!found.is_boolean()) refuse(key, "true or false");
  return found.get<bool>();
}

std::string JsonObject::text(const std::string& key,
                             std::initializer_list<std::string_view> allowed) {
  const json& found = value(key);
  if (found.is_string()) {
    for (const std::string_view option : allowed) {
      if (found.get_ref<const std::string&>() == option) return std::string(option);
    }
  }
  refuse(key, fmt::format("'{}'", fmt::join(allowed, "' or '")));
}

std::vector<int64_t> JsonObject::integers(const std::string& key, int64_t low, int64_t high) {
  const json& found = value(key);
  const std::string expected = fmt::format("an array of integers from {} to {}", low, high);
  if (!found.is_array() || found.size() > kMaxArray) refuse(key, expected);
  std::vector<int64_t> values;
  for (const json& item : found) {
    if (!item.is_number_integer() ||
        (item.is_number_unsigned() && item.get<uint64_t>() > INT64_MAX) ||
        item.get<int64_t>() < low || item.get<int64_t>() > high) {
      refuse(key, expected);
    }
    values.push_back(item.get<int64_t>());
  }
  return values;
}

const json& JsonObject::object(const std::string& key) {
  const json& found = value(key);
  if (!found.is_object()) refuse(key, "an object");
  return found;
}

void JsonObject::ignore(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) known_.emplace(key);
}

void JsonObject::finish() const {
  for (const auto& [key, unused] : object_.items()) {
    if (!known_.contains(key)) {
      fail(ErrorKind::kBadCheckpoint,
           "{}: has the unknown key '{}{}', which may change what the model computes", file_,
           prefix_, printable(key));
    }
  }
}

json parse_json_object(std::string_view text, const std::string& name_for_errors) {
  // A pass of its own: the parser's callbacks, which could do this too, cost quadratic time.
  RepeatedKeys repeated(name_for_errors);
  json::sax_parse(text.begin(), text.end(), &repeated);
  json document = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) {
    fail(ErrorKind::kBadCheckpoint, "{}: is not valid JSON", name_for_errors);
  }
  if (!document.is_object()) {
    fail(ErrorKind::kBadCheckpoint, "{}: is a JSON {}, expected an object", name_for_errors,
         document.type_name());
  }
  return document;
}

}  // namespace peregrine
