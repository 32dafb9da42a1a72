#include "text/tool_names.h"

#include "base/fail.h"

namespace peregrine {
namespace {

constexpr std::string_view kSeparator = "::";

bool is_set(const JsonValue* value) {
  return value && !(value->string() && value->string()->empty());
}

}  // namespace

QualifiedName qualified_name(const JsonValue& holder, const std::string& field) {
  const JsonValue* function = holder.find("function");
  if (!function || !function->is_object()) {
    fail(ErrorKind::kInvalidArgument, "{}.function is {}, expected an object", field,
         function ? function->kind_name() : "missing");
  }
  const JsonValue* name = function->find("name");
  if (!name || !name->string() || name->string()->empty()) {
    fail(ErrorKind::kInvalidArgument, "{}.function.name is {}, expected a name", field,
         !name            ? "missing"
         : name->string() ? "empty"
                          : name->kind_name());
  }
  QualifiedName result{.name_space = {}, .bare_name = *name->string(), .description = {}};
  const JsonValue* space = holder.find_set("namespace");
  if (!is_set(space)) space = function->find_set("namespace");
  if (is_set(space)) {
    const JsonValue* space_name = space->is_object() ? space->find("name") : space;
    if (!space_name || !space_name->string()) {
      fail(ErrorKind::kInvalidArgument,
           "{}.namespace is {}, expected a string or an object with a name", field,
           space->kind_name());
    }
    result.name_space = *space_name->string();
    const JsonValue* description = space->find_set("description");
    if (description && description->string()) result.description = *description->string();
  }
  if (result.name_space.find(kSeparator) != std::string::npos) {
    fail(ErrorKind::kInvalidArgument,
         "{}.namespace \"{}\" holds \"::\", which separates it from the name", field,
         result.name_space);
  }
  const size_t cut = result.bare_name.find(kSeparator);
  if (cut == std::string::npos) return result;
  const std::string left = result.bare_name.substr(0, cut);
  result.bare_name.erase(0, cut + kSeparator.size());
  if (result.bare_name.find(kSeparator) != std::string::npos) {
    fail(ErrorKind::kInvalidArgument, "{}.function.name \"{}\" holds more than one \"::\"", field,
         *name->string());
  }
  if (!result.name_space.empty() && left != result.name_space) {
    fail(ErrorKind::kInvalidArgument, "{}.function.name \"{}\" is outside the namespace \"{}\"",
         field, *name->string(), result.name_space);
  }
  result.name_space = left;
  return result;
}

}  // namespace peregrine
