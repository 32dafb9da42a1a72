#include "server/anthropic_chat.h"

#include <fmt/format.h>

#include "server/chat_call.h"

namespace peregrine {
namespace {

// Elements that must be objects, each with the path that errors name.
template <typename Visit>
void for_each_object(const JsonValue& list, const std::string& path, Visit visit) {
  const JsonValue::Array& items = *list.array();
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string field = fmt::format("{}[{}]", path, i);
    if (!items[i].is_object())
      throw ApiError(400, fmt::format("{} is {}, expected an object", field, items[i].kind_name()),
                     field, "invalid_value");
    visit(items[i], field);
  }
}

std::string required_string(RequestFields& fields, std::string_view name) {
  std::optional<std::string> value = fields.string(name);
  if (!value) fields.refuse(name, "a string");
  return std::move(*value);
}

[[noreturn]] void refuse_block(const std::string& field, const std::string& type) {
  throw ApiError(400,
                 fmt::format("{}.type is \"{}\", which cannot be given to the model", field,
                             type.substr(0, 100)),
                 field + ".type", "unsupported_content");
}

ContentPart parse_image(const JsonValue& block, const std::string& field) {
  const JsonValue* source = block.find_set("source");
  if (!source || !source->is_object() || source->object()->empty())
    throw ApiError(400, field + ".source is missing, expected where the image comes from",
                   field + ".source", "missing_field");
  return {{}, ImageRecord{"source", *source}};
}

ContentPart parse_part(const JsonValue& block, const std::string& field) {
  RequestFields fields(block, field + ".");
  const std::string type = required_string(fields, "type");
  if (type == "text") return {required_string(fields, "text"), std::nullopt};
  if (type == "image") return parse_image(block, field);
  refuse_block(field, type);
}

// A string or a list of text and image blocks; absent is empty.
std::vector<ContentPart> parse_parts(RequestFields& fields, const JsonValue& holder,
                                     const std::string& path, std::string_view name) {
  std::vector<ContentPart> parts;
  const JsonValue* content = holder.find_set(name);
  if (!content) return parts;
  if (content->string()) return {{*content->string(), std::nullopt}};
  if (!content->array()) fields.refuse(name, "a string or a list of content blocks");
  for_each_object(*content, path + std::string(name),
                  [&](const JsonValue& block, const std::string& field) {
                    parts.push_back(parse_part(block, field));
                  });
  return parts;
}

// What was said before a user's blocks goes into one message; a tool's result is its own.
void add_user_block(std::vector<Message>& messages, bool& open, const JsonValue& block,
                    const std::string& field) {
  RequestFields fields(block, field + ".");
  const std::string type = required_string(fields, "type");
  if (type == "tool_result") {
    Message result{.role = Role::kTool};
    result.tool_call_id = required_string(fields, "tool_use_id");
    result.content = parse_parts(fields, block, field + ".", "content");
    messages.push_back(std::move(result));
    open = false;
    return;
  }
  ContentPart part = parse_part(block, field);
  if (!open) messages.push_back({.role = Role::kUser});
  open = true;
  messages.back().content.push_back(std::move(part));
}

void add_assistant_block(Message& message, const JsonValue& block, const std::string& field) {
  RequestFields fields(block, field + ".");
  const std::string type = required_string(fields, "type");
  if (type == "text") {
    message.content.push_back({required_string(fields, "text"), std::nullopt});
  } else if (type == "thinking") {
    message.reasoning += required_string(fields, "thinking");
  } else if (type == "tool_use") {
    const JsonValue* input = block.find_set("input");
    if (input && !input->is_object()) fields.refuse("input", "an object");
    const std::string name = required_string(fields, "name");
    if (name.empty()) fields.refuse("name", "the name of a tool");
    message.tool_calls.push_back(
        {required_string(fields, "id"), name, input ? *input : JsonValue(JsonValue::Object())});
  } else if (type != "redacted_thinking") {
    refuse_block(field, type);
  }
}

void add_message(std::vector<Message>& messages, const JsonValue& value, const std::string& path) {
  RequestFields fields(value, path + ".");
  const std::string role = required_string(fields, "role");
  const JsonValue* content = fields.get("content");
  if (!content || !(content->string() || content->array()))
    fields.refuse("content", "a string or a list of content blocks");
  if (role == "system" || (role == "user" && content->string())) {
    Message message{.role = role == "user" ? Role::kUser : Role::kSystem};
    message.content = parse_parts(fields, value, path + ".", "content");
    messages.push_back(std::move(message));
  } else if (role == "user") {
    bool open = false;
    for_each_object(*content, path + ".content", [&](const JsonValue& b, const std::string& field) {
      add_user_block(messages, open, b, field);
    });
  } else if (role == "assistant") {
    Message message{.role = Role::kAssistant};
    if (content->string()) {
      message.content.push_back({*content->string(), std::nullopt});
    } else {
      for_each_object(*content, path + ".content", [&](const JsonValue& b, const std::string& f) {
        add_assistant_block(message, b, f);
      });
    }
    messages.push_back(std::move(message));
  } else {
    fields.refuse("role", "user, assistant or system");
  }
}

std::vector<Message> parse_messages(const JsonValue& body, RequestFields& fields) {
  std::vector<Message> messages;
  if (fields.get("system")) {
    Message system{.role = Role::kSystem};
    system.content = parse_parts(fields, body, "", "system");
    if (!system.content.empty()) messages.push_back(std::move(system));
  }
  const JsonValue* list = fields.get("messages");
  if (!list || !list->array() || list->array()->empty())
    fields.refuse("messages", "a list of at least one message");
  for_each_object(*list, "messages", [&](const JsonValue& message, const std::string& field) {
    add_message(messages, message, field);
  });
  if (messages.empty()) fields.refuse("messages", "at least one message with content");
  if (messages.back().role == Role::kAssistant) messages.back().prefix = true;
  return messages;
}

std::vector<Tool> parse_tools(RequestFields& fields) {
  std::vector<Tool> tools;
  const JsonValue* list = fields.get("tools");
  if (!list) return tools;
  if (!list->array()) fields.refuse("tools", "a list of tools");
  for_each_object(*list, "tools", [&](const JsonValue& tool, const std::string& field) {
    RequestFields members(tool, field + ".");
    const std::string type = members.string("type").value_or("custom");
    if (type != "custom")
      throw ApiError(400,
                     fmt::format("{}.type is \"{}\", but tools that run on the server are not "
                                 "offered, expected custom",
                                 field, type.substr(0, 100)),
                     field + ".type", "unsupported_tool");
    const std::string name = required_string(members, "name");
    if (name.empty()) members.refuse("name", "the name of a tool");
    JsonValue function{JsonValue::Object()};
    function.set("name", JsonValue(name));
    if (const auto description = members.string("description"))
      function.set("description", JsonValue(*description));
    const JsonValue* schema = members.get("input_schema");
    if (!schema || !schema->is_object()) members.refuse("input_schema", "an object");
    function.set("parameters", *schema);
    if (const auto strict = members.boolean("strict")) function.set("strict", JsonValue(*strict));
    JsonValue holder{JsonValue::Object()};
    holder.set("function", std::move(function));
    tools.push_back(parse_tool(holder, field));
  });
  return tools;
}

void parse_tool_choice(RequestFields& fields, ChatRequest& chat) {
  const JsonValue* choice = fields.get("tool_choice");
  if (!choice) return;
  if (!choice->is_object()) fields.refuse("tool_choice", "an object");
  RequestFields members(*choice, "tool_choice.");
  const std::string type = required_string(members, "type");
  if (type == "none") {
    chat.tool_choice = ToolChoice::kNone;
  } else if (type == "any") {
    chat.tool_choice = ToolChoice::kRequired;
  } else if (type == "tool") {
    chat.tool_choice = ToolChoice::kFunction;
    chat.tool_choice_name = required_string(members, "name");
  } else if (type != "auto") {
    members.refuse("type", "auto, any, tool or none");
  }
}

void parse_mode(RequestFields& fields, ChatRequest& chat) {
  if (const JsonValue* thinking = fields.get("thinking")) {
    if (!thinking->is_object()) fields.refuse("thinking", "an object");
    RequestFields members(*thinking, "thinking.");
    const std::string type = required_string(members, "type");
    if (type != "enabled" && type != "adaptive" && type != "disabled")
      members.refuse("type", "enabled, adaptive or disabled");
    chat.thinking = type != "disabled";
  }
  const JsonValue* config = fields.get("output_config");
  const JsonValue* effort = config ? config->find_set("effort") : nullptr;
  if (!effort) return;
  const int value = parse_effort(*effort, "output_config.effort");
  value == 0 ? void(chat.thinking = false) : void(chat.effort = value);
}

std::optional<JsonValue> parse_format(RequestFields& fields) {
  const JsonValue* config = fields.get("output_config");
  if (!config) return std::nullopt;
  if (!config->is_object()) fields.refuse("output_config", "an object");
  RequestFields members(*config, "output_config.");
  const JsonValue* format = members.get("format");
  if (!format) return std::nullopt;
  if (!format->is_object()) members.refuse("format", "an object");
  RequestFields inner(*format, "output_config.format.");
  if (required_string(inner, "type") != "json_schema") inner.refuse("type", "json_schema");
  const JsonValue* schema = inner.get("schema");
  if (!schema || !schema->is_object()) inner.refuse("schema", "an object");
  return *schema;
}

}  // namespace

ChatRequest anthropic_chat(const JsonValue& body, RequestFields& fields) {
  ChatRequest chat;
  chat.messages = parse_messages(body, fields);
  parse_mode(fields, chat);
  parse_tool_choice(fields, chat);
  chat.schema_field = "output_config.format.schema";
  std::optional<JsonValue> schema = parse_format(fields);
  set_tools(chat, parse_tools(fields), std::move(schema));
  return chat;
}

bool anthropic_parallel_calls(const JsonValue& body) {
  const JsonValue* choice = body.find_set("tool_choice");
  if (!choice) return true;
  RequestFields members(*choice, "tool_choice.");
  return !members.boolean("disable_parallel_tool_use").value_or(false);
}

}  // namespace peregrine
