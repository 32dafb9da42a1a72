// The namespace rule of tools and calls (spec: encoding.md sections 6, 7).
#pragma once

#include <string>

#include "text/json_text.h"

namespace peregrine {

struct QualifiedName {
  std::string name_space;  // empty: none
  std::string bare_name;
  std::string description;  // of the namespace, when it is an object that has one
  std::string printed() const {
    return name_space.empty() ? bare_name : name_space + "::" + bare_name;
  }
};

// `holder` is a tool or a tool call: an object with a `function` and perhaps a `namespace`, which
// the function may hold instead. Throws Error(kInvalidArgument) naming `field` when the name is
// missing or namespaces conflict or nest.
QualifiedName qualified_name(const JsonValue& holder, const std::string& field);

}  // namespace peregrine
