#include "server/request_fields.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace peregrine {
namespace {

constexpr size_t kWarnedNames = 16, kWarnedNameBytes = 64;

std::string describe(const JsonValue& value) {
  if (value.boolean() || value.is_number()) return value.dump();
  if (value.string()) return value.string()->size() <= 40 ? value.dump() : "a string";
  return value.kind_name();
}

}  // namespace

JsonValue parse_body(const HttpRequest& request) {
  if (const std::string* type = request.header("content-type")) {
    std::string kind = type->substr(0, type->find(';'));
    while (!kind.empty() && kind.back() == ' ') kind.pop_back();
    for (char& c : kind) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    // curl -d says form-urlencoded unless told otherwise; the body decides.
    if (!kind.empty() && kind != "application/json" && !kind.ends_with("+json") &&
        kind != "application/x-www-form-urlencoded" && kind != "text/plain")
      throw ApiError(415, fmt::format("Content-Type is {}, expected application/json", kind));
  }
  JsonParse parsed = parse_json(request.body);
  if (!parsed.value)
    throw ApiError(400, "the body is no JSON document: " + parsed.problem, {}, "invalid_json");
  if (!parsed.value->is_object())
    throw ApiError(400,
                   fmt::format("the body is {}, expected an object", parsed.value->kind_name()), {},
                   "invalid_json");
  return std::move(*parsed.value);
}

const JsonValue* RequestFields::get(std::string_view name) {
  known_.emplace(name);
  return object_.find_set(name);
}

void RequestFields::refuse(std::string_view name, const std::string& expected) const {
  const JsonValue* value = object_.find(name);
  const std::string field = path_ + std::string(name);
  throw ApiError(
      400,
      fmt::format("{} is {}, expected {}", field, value ? describe(*value) : "missing", expected),
      field, value ? "invalid_value" : "missing_field");
}

std::optional<bool> RequestFields::boolean(std::string_view name) {
  const JsonValue* value = get(name);
  if (!value) return std::nullopt;
  if (!value->boolean()) refuse(name, "true or false");
  return *value->boolean();
}

std::optional<int64_t> RequestFields::integer(std::string_view name, int64_t low, int64_t high) {
  const JsonValue* value = get(name);
  if (!value) return std::nullopt;
  std::optional<int64_t> number = value->as_int64();
  // Some clients write whole numbers as doubles.
  if (const double* d = value->floating(); d && std::floor(*d) == *d && std::abs(*d) < 1e15)
    number = static_cast<int64_t>(*d);
  if (!number || *number < low || *number > high) {
    refuse(name, high == std::numeric_limits<int64_t>::max()
                     ? fmt::format("an integer of at least {}", low)
                     : fmt::format("an integer from {} to {}", low, high));
  }
  return number;
}

std::optional<double> RequestFields::number(std::string_view name, double low, double high) {
  const JsonValue* value = get(name);
  if (!value) return std::nullopt;
  double number = std::numeric_limits<double>::quiet_NaN();
  if (const double* d = value->floating()) number = *d;
  if (const auto i = value->as_int64()) number = static_cast<double>(*i);
  if (!(number >= low && number <= high))
    refuse(name, fmt::format("a number from {} to {}", low, high));
  return number;
}

std::optional<std::string> RequestFields::string(std::string_view name) {
  const JsonValue* value = get(name);
  if (!value) return std::nullopt;
  if (!value->string()) refuse(name, "a string");
  return *value->string();
}

std::vector<std::string> RequestFields::strings(std::string_view name, size_t most) {
  const JsonValue* value = get(name);
  if (!value) return {};
  const std::string expected = fmt::format("a string or a list of up to {} strings", most);
  if (value->string()) return {*value->string()};
  if (!value->array() || value->array()->size() > most) refuse(name, expected);
  std::vector<std::string> result;
  for (const JsonValue& item : *value->array()) {
    if (!item.string()) refuse(name, expected);
    result.push_back(*item.string());
  }
  return result;
}

std::vector<std::string> RequestFields::unknown() const {
  std::vector<std::string> names;
  for (const JsonMember& member : *object_.object())
    if (!known_.contains(member.key)) names.push_back(path_ + member.key);
  return names;
}

std::string unknown_fields_warning(const std::vector<std::string>& names) {
  if (names.empty()) return {};
  std::string text = "ignored unknown fields: ";
  for (size_t i = 0; i < names.size() && i < kWarnedNames; ++i) {
    if (i > 0) text += ", ";
    // A header holds ASCII only.
    for (const char c : names[i].substr(0, kWarnedNameBytes)) text += c > ' ' && c < 127 ? c : '?';
  }
  if (names.size() > kWarnedNames) text += fmt::format(" and {} more", names.size() - kWarnedNames);
  return text;
}

}  // namespace peregrine
