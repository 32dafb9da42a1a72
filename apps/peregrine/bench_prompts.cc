#include "bench_prompts.h"

#include <fmt/format.h>

#include <fstream>

#include "base/fail.h"
#include "chat_request.h"
#include "text/prompt.h"

namespace peregrine {
namespace {

BenchPrompt read_prompt(const std::string& line, const std::string& where,
                        const Tokenizer& tokenizer) {
  const JsonParse parsed = parse_json(line);
  if (!parsed.value) fail(ErrorKind::kInvalidArgument, "{}: {}", where, parsed.problem);
  const auto text = [&](const char* key) {
    const JsonValue* value = parsed.value->find(key);
    return value != nullptr && value->is_string() ? *value->string() : std::string();
  };
  BenchPrompt prompt{.domain = text("domain")};
  if (prompt.domain.empty() || text("user").empty())
    fail(ErrorKind::kInvalidArgument, "{}: expected strings \"domain\" and \"user\"", where);
  ChatRequest request;
  const JsonValue* effort = parsed.value->find("thinking");
  set_thinking(effort == nullptr ? "off" : effort->dump(), request);
  if (!text("system").empty())
    request.messages.push_back(text_message(Role::kSystem, text("system")));
  request.messages.push_back(text_message(Role::kUser, text("user")));
  if (const JsonValue* tools = parsed.value->find("tools"); tools != nullptr && tools->is_array()) {
    std::vector<Tool> list;
    for (const JsonValue& tool : *tools->array()) list.push_back(parse_tool(tool, where));
    attach_to_system(request.messages, std::move(list), std::nullopt);
  }
  prompt.ids = encode_prompt(render_prompt(request), tokenizer);
  return prompt;
}

}  // namespace

std::vector<BenchPrompt> read_bench_prompts(const std::string& path, const Tokenizer& tokenizer) {
  std::ifstream file(path);
  if (!file) fail(ErrorKind::kIo, "{}: cannot be opened", path);
  std::vector<BenchPrompt> prompts;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number)
    if (!line.empty())
      prompts.push_back(read_prompt(line, fmt::format("{}:{}", path, number), tokenizer));
  if (prompts.empty()) fail(ErrorKind::kInvalidArgument, "{}: holds no prompts", path);
  return prompts;
}

}  // namespace peregrine
