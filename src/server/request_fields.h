// Typed access to the members of a request body.
//
// Owns: which members were asked for, so that the others can be named in a warning. Refuses: a
// member of the wrong type or out of range, as ApiError 400 that names the field.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "text/json_text.h"

namespace peregrine {

// The body as a JSON object; ApiError 400 when it is none, 415 for another media type.
JsonValue parse_body(const HttpRequest& request);

class RequestFields {
 public:
  // `path` goes before the names in errors: "stream_options.". The object must outlive this.
  explicit RequestFields(const JsonValue& object, std::string path = {})
      : object_(object), path_(std::move(path)) {}

  // A null member counts as absent.
  const JsonValue* get(std::string_view name);
  std::optional<bool> boolean(std::string_view name);
  std::optional<int64_t> integer(std::string_view name, int64_t low, int64_t high);
  std::optional<double> number(std::string_view name, double low, double high);
  std::optional<std::string> string(std::string_view name);
  // A string or a list of up to `most` strings.
  std::vector<std::string> strings(std::string_view name, size_t most);

  void know(std::string_view name) { known_.emplace(name); }
  [[noreturn]] void refuse(std::string_view name, const std::string& expected) const;

  // Members nobody has asked for, in order.
  std::vector<std::string> unknown() const;

 private:
  const JsonValue& object_;
  const std::string path_;
  std::set<std::string, std::less<>> known_;
};

// "ignored unknown fields: a, b" for the X-Peregrine-Warning header; empty when there are none.
std::string unknown_fields_warning(const std::vector<std::string>& names);

}  // namespace peregrine
