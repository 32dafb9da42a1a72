// Pieces of chat requests that the commands share: thinking, plain messages, tools from a file.
#pragma once

#include <string>
#include <vector>

#include "text/chat.h"

namespace CLI {
class App;
}

namespace peregrine {

// --thinking[=EFFORT]; the value stays text until set_thinking().
void add_thinking_flag(CLI::App& command, std::string& value);

// `value`: on, off or an effort of 1 to 100. Throws Error(kInvalidArgument).
void set_thinking(const std::string& value, ChatRequest& request);

Message text_message(Role role, std::string text);

// A JSON list of tools as OpenAI-style requests have them. Throws Error.
std::vector<Tool> read_tools(const std::string& path);

}  // namespace peregrine
