#include "text/chat.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/fail.h"
#include "text/tool_names.h"

namespace peregrine {
namespace {

template <typename... Args>
[[noreturn]] void bad(fmt::format_string<Args...> format, Args&&... args) {
  fail(ErrorKind::kInvalidArgument, "{}", fmt::format(format, std::forward<Args>(args)...));
}

// A string member; null and absent are empty.
std::string text_member(const JsonValue& parent, std::string_view key, const std::string& field) {
  const JsonValue* value = parent.find_set(key);
  if (!value) return {};
  if (!value->string()) bad("{}.{} is {}, expected a string", field, key, value->kind_name());
  return *value->string();
}

bool flag_member(const JsonValue& parent, std::string_view key, bool otherwise) {
  const JsonValue* value = parent.find_set(key);
  if (!value) return otherwise;
  if (!value->boolean()) bad("{} is {}, expected true or false", key, value->kind_name());
  return *value->boolean();
}

Role parse_role(const JsonValue& message, const std::string& field) {
  static constexpr std::pair<std::string_view, Role> kRoles[] = {
      {"system", Role::kSystem}, {"developer", Role::kSystem},
      {"user", Role::kUser},     {"assistant", Role::kAssistant},
      {"tool", Role::kTool},     {"latest_reminder", Role::kLatestReminder}};
  const std::string role = text_member(message, "role", field);
  for (const auto& [name, value] : kRoles) {
    if (role == name) return value;
  }
  bad("{}.role is \"{}\", expected system, developer, user, assistant, tool or latest_reminder",
      field, role);
}

ImageRecord parse_image(const JsonValue& part, const std::string& field) {
  if (const JsonValue* image = part.find_set("image_url")) {
    const JsonValue* url = image->is_object() ? image->find_set("url") : image;
    if (url && url->string() && !url->string()->empty()) return {"url", *url};
  }
  for (const char* key : {"source", "url", "data"}) {
    const JsonValue* value = part.find_set(key);
    const bool usable = value && (value->string() ? !value->string()->empty()
                                                  : value->object() && !value->object()->empty());
    if (usable) return {key, *value};
  }
  bad("{} is an image without a source, expected image_url, source, url or data", field);
}

ContentPart parse_part(const JsonValue& part, const std::string& field) {
  const std::string type = text_member(part, "type", field);
  if (type == "text") {
    if (!part.find("text")) bad("{}.text is missing", field);
    return {text_member(part, "text", field), std::nullopt};
  }
  if (type == "image_url" || type == "image") return {{}, parse_image(part, field)};
  bad("{}.type is \"{}\", expected text, image_url or image", field, type);
}

std::vector<ContentPart> parse_content(const JsonValue& message, const std::string& field) {
  std::vector<ContentPart> parts;
  const JsonValue* content = message.find_set("content");
  if (!content) return parts;
  if (const std::string* text = content->string()) {
    parts.push_back({*text, std::nullopt});
  } else if (const auto* list = content->array()) {
    for (size_t i = 0; i < list->size(); ++i) {
      parts.push_back(parse_part((*list)[i], fmt::format("{}.content[{}]", field, i)));
    }
  } else {
    bad("{}.content is {}, expected a string or an array of parts", field, content->kind_name());
  }
  return parts;
}

std::vector<ToolCall> parse_calls(const JsonValue& message, const std::string& field) {
  std::vector<ToolCall> calls;
  const JsonValue* list = message.find_set("tool_calls");
  if (!list) return calls;
  if (!list->array()) bad("{}.tool_calls is {}, expected an array", field, list->kind_name());
  for (size_t i = 0; i < list->array()->size(); ++i) {
    const JsonValue& call = (*list->array())[i];
    const std::string call_field = fmt::format("{}.tool_calls[{}]", field, i);
    const QualifiedName name = qualified_name(call, call_field);
    const JsonValue* arguments = call.find("function")->find("arguments");
    calls.push_back({text_member(call, "id", call_field), name.printed(),
                     arguments ? parse_arguments(*arguments) : JsonValue(JsonValue::Object())});
  }
  return calls;
}

Message parse_message(const JsonValue& value, const std::string& field) {
  if (!value.is_object()) bad("{} is {}, expected an object", field, value.kind_name());
  Message message;
  message.role = parse_role(value, field);
  message.content = parse_content(value, field);
  message.task = text_member(value, "task", field);
  if (!message.task.empty() && !is_known_task(message.task)) {
    bad("{}.task is \"{}\", expected action, query, authority, domain, title or read_url", field,
        message.task);
  }
  if (message.role == Role::kTool) message.tool_call_id = text_member(value, "tool_call_id", field);
  if (message.role == Role::kAssistant) {
    message.reasoning = text_member(value, "reasoning_content", field);
    if (message.reasoning.empty()) message.reasoning = text_member(value, "reasoning", field);
    message.tool_calls = parse_calls(value, field);
    message.prefix = flag_member(value, "prefix", false);
  }
  return message;
}

// Mode, effort and drop flag; chat_template_kwargs says what the request itself leaves open.
void parse_mode(const JsonValue& request, ChatRequest& result) {
  static const JsonValue kEmpty{JsonValue::Object()};
  const JsonValue* given = request.find_set("chat_template_kwargs");
  const JsonValue& extra = given ? *given : kEmpty;
  result.thinking = flag_member(extra, "thinking", flag_member(extra, "enable_thinking", true));
  if (const JsonValue* thinking = request.find_set("thinking")) {
    if (!thinking->is_object()) bad("thinking is {}, expected an object", thinking->kind_name());
    result.thinking = text_member(*thinking, "type", "thinking") != "disabled";
  }
  const JsonValue* effort = request.find_set("reasoning_effort");
  if (!effort) effort = extra.find_set("reasoning_effort");
  if (effort) {
    const int value = parse_effort(*effort, "reasoning_effort");
    if (value == 0) {
      result.thinking = false;
    } else {
      result.effort = value;
    }
  }
  result.drop_thinking =
      flag_member(request, "drop_thinking", flag_member(extra, "drop_thinking", true));
}

void parse_tool_choice(const JsonValue& request, ChatRequest& result) {
  const JsonValue* choice = request.find_set("tool_choice");
  if (!choice) return;
  if (const std::string* word = choice->string()) {
    if (*word == "auto") return;
    if (*word == "none" || *word == "required") {
      result.tool_choice = *word == "none" ? ToolChoice::kNone : ToolChoice::kRequired;
      return;
    }
  } else if (const JsonValue* function = choice->find_set("function")) {
    result.tool_choice = ToolChoice::kFunction;
    result.tool_choice_name = text_member(*function, "name", "tool_choice.function");
    return;
  }
  bad("tool_choice is {}, expected none, auto, required or a function", choice->dump());
}

std::optional<JsonValue> parse_response_format(const JsonValue& request, ChatRequest& result) {
  const JsonValue* format = request.find_set("response_format");
  if (!format) return std::nullopt;
  if (!format->is_object()) bad("response_format is {}, expected an object", format->kind_name());
  const std::string type = text_member(*format, "type", "response_format");
  if (type == "text") return std::nullopt;
  if (type == "json_object") {
    result.response_format = ResponseFormat::kJsonObject;
    return std::nullopt;
  }
  if (type != "json_schema") {
    bad("response_format.type is \"{}\", expected text, json_object or json_schema", type);
  }
  const JsonValue* holder = format->find_set("json_schema");
  const JsonValue* schema = holder ? holder->find_set("schema") : nullptr;
  if (!schema) bad("response_format.json_schema.schema is missing");
  result.response_format = ResponseFormat::kJsonSchema;
  return *schema;
}

std::vector<Tool> parse_tools_member(const JsonValue& request, const ChatRequest& result) {
  std::vector<Tool> tools;
  const JsonValue* list = request.find_set("tools");
  if (!list) return tools;
  if (!list->array()) bad("tools is {}, expected an array", list->kind_name());
  for (size_t i = 0; i < list->array()->size(); ++i) {
    tools.push_back(parse_tool((*list->array())[i], fmt::format("tools[{}]", i)));
  }
  const auto is_chosen = [&](const Tool& t) { return t.declared_name == result.tool_choice_name; };
  if (result.tool_choice == ToolChoice::kFunction &&
      std::none_of(tools.begin(), tools.end(), is_chosen)) {
    bad("tool_choice names \"{}\", which is not among the tools", result.tool_choice_name);
  }
  if (result.tool_choice == ToolChoice::kNone) tools.clear();
  return tools;
}

}  // namespace

const std::vector<Tool>& ChatRequest::tools() const {
  static const std::vector<Tool> kNone;
  return messages.empty() ? kNone : messages.front().tools;
}

bool is_known_task(std::string_view task) {
  static constexpr std::string_view kTasks[] = {"action", "query", "authority",
                                                "domain", "title", "read_url"};
  return std::find(std::begin(kTasks), std::end(kTasks), task) != std::end(kTasks);
}

Tool parse_tool(const JsonValue& tool, const std::string& field) {
  if (!tool.is_object()) bad("{} is {}, expected an object", field, tool.kind_name());
  if (const JsonValue* type = tool.find_set("type")) {
    if (!type->string() || *type->string() != "function") {
      bad("{}.type is {}, expected \"function\"", field, type->dump());
    }
  }
  const QualifiedName name = qualified_name(tool, field);
  Tool result;
  result.schema = *tool.find("function");
  result.declared_name = *result.schema.find("name")->string();
  result.name_space = name.name_space;
  result.printed_name = name.printed();
  result.schema.erase("namespace");
  result.schema.set("name", JsonValue(result.printed_name));
  if (!name.description.empty()) {
    const std::string own = text_member(result.schema, "description", field + ".function");
    result.schema.set("description", JsonValue(name.description + "\n" + own));
  }
  return result;
}

int parse_effort(const JsonValue& effort, std::string_view field) {
  static constexpr std::pair<std::string_view, int> kNames[] = {
      {"none", 0},  {"minimal", 50}, {"low", 50},  {"medium", 75},
      {"high", 75}, {"xhigh", 75},   {"max", 100}, {"ultra", 100}};
  if (const std::string* name = effort.string()) {
    for (const auto& [known, value] : kNames) {
      if (*name == known) return value;
    }
  }
  const std::optional<int64_t> number = effort.as_int64();
  if (number && *number >= 1 && *number <= 100) return static_cast<int>(*number);
  bad("{} is {}, expected none, minimal, low, medium, high, xhigh, max, ultra or an integer from 1 "
      "to 100",
      field, effort.dump());
}

JsonValue parse_arguments(const JsonValue& arguments) {
  if (arguments.is_object()) return arguments;
  JsonValue value = arguments;
  // Some clients encode the string twice.
  for (int round = 0; round < 2 && value.string(); ++round) {
    JsonParse parsed = parse_json(*value.string());
    if (!parsed.value) break;
    value = std::move(*parsed.value);
  }
  if (value.is_object()) return value;
  JsonValue wrapped{JsonValue::Object()};
  wrapped.set("arguments", arguments);
  return wrapped;
}

void attach_to_system(std::vector<Message>& messages, std::vector<Tool> tools,
                      std::optional<JsonValue> response_schema) {
  if (tools.empty() && !response_schema) return;
  if (messages.empty() || messages.front().role != Role::kSystem) {
    Message system;
    system.role = Role::kSystem;
    messages.insert(messages.begin(), std::move(system));
  }
  messages.front().tools = std::move(tools);
  messages.front().response_schema = std::move(response_schema);
}

ChatRequest parse_chat_request(const JsonValue& request) {
  if (!request.is_object()) bad("the request is {}, expected an object", request.kind_name());
  ChatRequest result;
  const JsonValue* messages = request.find("messages");
  if (!messages || !messages->array() || messages->array()->empty()) {
    bad("messages is {}, expected an array of messages", !messages ? "missing"
                                                         : messages->array()
                                                             ? "empty"
                                                             : messages->kind_name());
  }
  for (size_t i = 0; i < messages->array()->size(); ++i) {
    result.messages.push_back(
        parse_message((*messages->array())[i], fmt::format("messages[{}]", i)));
  }
  parse_mode(request, result);
  parse_tool_choice(request, result);
  std::optional<JsonValue> schema = parse_response_format(request, result);
  attach_to_system(result.messages, parse_tools_member(request, result), std::move(schema));
  return result;
}

ReturnedName returned_name(std::string_view parsed_name, const std::vector<Tool>& tools) {
  const ReturnedName whole{std::string(parsed_name), {}};
  const auto declared = [&](const Tool& t) { return t.declared_name == parsed_name; };
  if (std::any_of(tools.begin(), tools.end(), declared)) return whole;
  const size_t cut = parsed_name.find("::");
  if (cut == parsed_name.npos || parsed_name.find("::", cut + 2) != parsed_name.npos) return whole;
  const std::string_view space = parsed_name.substr(0, cut);
  const auto in_space = [&](const Tool& t) { return t.name_space == space; };
  if (space.empty() || std::none_of(tools.begin(), tools.end(), in_space)) return whole;
  return {std::string(parsed_name.substr(cut + 2)), std::string(space)};
}

}  // namespace peregrine
