// The tools of an OpenAI Responses request (spec: api.md section 8.1).
//
// Owns: function, custom and namespace tools, and tool_choice. Tools that only OpenAI's servers can
// run are left out. A custom tool is offered to the model as a function with the one string
// parameter `input`.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "server/request_fields.h"
#include "text/chat.h"

namespace peregrine {

struct ResponsesTools {
  std::vector<Tool> tools;
  std::set<std::string, std::less<>> custom;  // declared names of the custom tools
  std::vector<std::string> dropped;           // "tools[2] (web_search)"
};

// Sets the choice of `chat`; its tools are the caller's to set.
ResponsesTools responses_tools(RequestFields& fields, ChatRequest& chat);

}  // namespace peregrine
