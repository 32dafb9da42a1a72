#include "chat_request.h"

#include <CLI/CLI.hpp>
#include <charconv>

#include "base/fail.h"
#include "input.h"

namespace peregrine {

void add_thinking_flag(CLI::App& command, std::string& value) {
  command.add_flag("--thinking{on}", value,
                   "Let the model reason first; --thinking=N sets an effort of 1 to 100");
}

void set_thinking(const std::string& value, ChatRequest& request) {
  request.thinking = value != "off";
  request.effort = kDefaultEffort;
  if (value == "off" || value == "on") return;
  const char* end = value.data() + value.size();
  const auto [at, error] = std::from_chars(value.data(), end, request.effort);
  if (error != std::errc() || at != end || request.effort < 1 || request.effort > 100)
    fail(ErrorKind::kInvalidArgument, "thinking '{}': expected on, off or an effort of 1 to 100",
         value);
}

Message text_message(Role role, std::string text) {
  Message message;
  message.role = role;
  message.content.push_back({.text = std::move(text)});
  return message;
}

std::vector<Tool> read_tools(const std::string& path) {
  const JsonParse parsed = parse_json(read_input(path, false));
  if (!parsed.value) fail(ErrorKind::kInvalidArgument, "{}: {}", path, parsed.problem);
  const JsonValue& list = *parsed.value;
  if (!list.is_array())
    fail(ErrorKind::kInvalidArgument, "{}: expected a JSON list of tools", path);
  std::vector<Tool> tools;
  for (const JsonValue& tool : *list.array())
    tools.push_back(parse_tool(tool, path + "[" + std::to_string(tools.size()) + "]"));
  return tools;
}

}  // namespace peregrine
