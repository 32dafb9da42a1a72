// The markup of tool calls as a grammar (spec: encoding.md section 6): what forced calls look like.
#pragma once

#include <string_view>
#include <vector>

#include "text/chat.h"
#include "text/json_grammar.h"

namespace peregrine {

// "\n\n<｜DSML｜ calls>\n" and so on to "</｜DSML｜ calls>": one or more calls of these tools, with
// the parameters of their schemas in their order. A parameter whose schema is not understood
// (json_grammar.h) may have any value, because declarations are made for other servers too.
// Returns the rule.
int add_calls(JsonGrammar& json, const std::vector<Tool>& tools);

}  // namespace peregrine
