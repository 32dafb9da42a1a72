#include "server/responses_tools.h"

#include <fmt/format.h>

namespace peregrine {
namespace {

JsonValue object(JsonValue::Object members) { return JsonValue(std::move(members)); }
JsonValue text(std::string_view value) { return JsonValue(std::string(value)); }

std::string required_name(RequestFields& fields) {
  std::optional<std::string> name = fields.string("name");
  if (!name || name->empty()) fields.refuse("name", "the name of a tool");
  return std::move(*name);
}

class ToolReader {
 public:
  // `space` is the namespace's object; null outside any.
  void add(const JsonValue& tool, const std::string& field, const JsonValue* space) {
    if (!tool.is_object())
      throw ApiError(400, fmt::format("{} is {}, expected an object", field, tool.kind_name()),
                     field, "invalid_value");
    RequestFields fields(tool, field + ".");
    const std::optional<std::string> type = fields.string("type");
    if (!type) fields.refuse("type", "a string");
    if (*type == "function") {
      add_function(fields, field, space);
    } else if (*type == "custom") {
      add_custom(fields, field, space);
    } else if (*type == "namespace" && !space) {
      add_namespace(fields, field);
    } else {
      result_.dropped.push_back(fmt::format("{} ({})", field, *type));
    }
  }

  void add_all(const JsonValue& list, const std::string& path, const JsonValue* space) {
    for (size_t i = 0; i < list.array()->size(); ++i)
      add((*list.array())[i], fmt::format("{}[{}]", path, i), space);
  }

  ResponsesTools take() { return std::move(result_); }

 private:
  void add_function(RequestFields& fields, const std::string& field, const JsonValue* space) {
    JsonValue function = object({{"name", text(required_name(fields))}});
    if (const auto description = fields.string("description"))
      function.set("description", text(*description));
    if (const JsonValue* parameters = fields.get("parameters")) {
      if (!parameters->is_object()) fields.refuse("parameters", "an object");
      function.set("parameters", *parameters);
    }
    push(std::move(function), field, space);
  }

  void add_custom(RequestFields& fields, const std::string& field, const JsonValue* space) {
    const std::string name = required_name(fields);
    std::string description = fields.string("description").value_or("");
    // The model is told the grammar; nothing enforces it.
    if (const JsonValue* format = fields.get("format")) {
      const JsonValue* definition = format->find_set("definition");
      if (definition && definition->string())
        description += "\n\nThe input follows this grammar:\n" + *definition->string();
    }
    JsonValue input = object({{"type", text("string")}});
    JsonValue parameters = object({{"type", text("object")},
                                   {"properties", object({{"input", std::move(input)}})},
                                   {"required", JsonValue(JsonValue::Array{text("input")})}});
    push(object({{"name", text(name)},
                 {"description", text(description)},
                 {"parameters", std::move(parameters)}}),
         field, space);
    result_.custom.insert(name);
  }

  void add_namespace(RequestFields& fields, const std::string& field) {
    JsonValue space = object({{"name", text(required_name(fields))}});
    if (const auto description = fields.string("description"))
      space.set("description", text(*description));
    const JsonValue* tools = fields.get("tools");
    if (!tools || !tools->array()) fields.refuse("tools", "a list of tools");
    add_all(*tools, field + ".tools", &space);
  }

  void push(JsonValue function, const std::string& field, const JsonValue* space) {
    JsonValue holder = object({{"function", std::move(function)}});
    if (space) holder.set("namespace", *space);
    result_.tools.push_back(parse_tool(holder, field));
  }

  ResponsesTools result_;
};

void parse_choice(RequestFields& fields, ChatRequest& chat) {
  const JsonValue* choice = fields.get("tool_choice");
  if (!choice) return;
  constexpr const char* kExpected = "none, auto, required or {type: function, name}";
  if (const std::string* word = choice->string()) {
    if (*word == "none") {
      chat.tool_choice = ToolChoice::kNone;
    } else if (*word == "required") {
      chat.tool_choice = ToolChoice::kRequired;
    } else if (*word != "auto") {
      fields.refuse("tool_choice", kExpected);
    }
    return;
  }
  if (!choice->is_object()) fields.refuse("tool_choice", kExpected);
  RequestFields members(*choice, "tool_choice.");
  const std::string type = members.string("type").value_or("");
  if (type != "function" && type != "custom") members.refuse("type", "function or custom");
  chat.tool_choice = ToolChoice::kFunction;
  chat.tool_choice_name = required_name(members);
}

}  // namespace

ResponsesTools responses_tools(RequestFields& fields, ChatRequest& chat) {
  parse_choice(fields, chat);
  ToolReader reader;
  if (const JsonValue* list = fields.get("tools")) {
    if (!list->array()) fields.refuse("tools", "a list of tools");
    reader.add_all(*list, "tools", nullptr);
  }
  return reader.take();
}

}  // namespace peregrine
