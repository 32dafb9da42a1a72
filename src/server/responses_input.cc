#include "server/responses_input.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include "text/tool_names.h"
#include "text/unicode.h"

namespace peregrine {
namespace {

constexpr std::string_view kSealHead = "peregrine-reasoning-1:";

std::string required_string(RequestFields& fields, std::string_view name) {
  std::optional<std::string> value = fields.string(name);
  if (!value) fields.refuse(name, "a string");
  return std::move(*value);
}

// One item at a time becomes messages.
class InputReader {
 public:
  void add_text(Role role, const std::string& text) {
    Message message{.role = role};
    message.content.push_back({text, std::nullopt});
    add(std::move(message));
  }

  void add_item(const JsonValue& item, const std::string& field) {
    if (!item.is_object())
      throw ApiError(400, fmt::format("{} is {}, expected an object", field, item.kind_name()),
                     field, "invalid_value");
    RequestFields fields(item, field + ".");
    const std::string type = fields.string("type").value_or(item.find_set("role") ? "message" : "");
    if (type == "message") {
      add_message(fields, field);
    } else if (type == "reasoning") {
      turn().reasoning += reasoning_text(fields);
    } else if (type == "function_call") {
      add_call(fields, parse_arguments(JsonValue(fields.string("arguments").value_or("{}"))));
    } else if (type == "custom_tool_call") {
      JsonValue arguments{JsonValue::Object()};
      arguments.set("input", JsonValue(required_string(fields, "input")));
      add_call(fields, std::move(arguments));
    } else if (type == "function_call_output" || type == "custom_tool_call_output") {
      Message result{.role = Role::kTool};
      result.tool_call_id = required_string(fields, "call_id");
      result.content = parse_parts(fields, field, "output");
      add(std::move(result));
    } else if (type == "agent_message") {
      add_agent_message(fields);
    } else if (type.empty()) {
      fields.refuse("type", "the type of an item");
    } else {
      result_.dropped.push_back(fmt::format("{} ({})", field, type));
    }
  }

  ResponsesInput take() { return std::move(result_); }

 private:
  void add(Message message) {
    result_.messages.push_back(std::move(message));
    in_turn_ = false;
  }

  // The assistant's turn that is being put together.
  Message& turn() {
    if (!in_turn_) result_.messages.push_back({.role = Role::kAssistant});
    in_turn_ = true;
    return result_.messages.back();
  }

  void add_message(RequestFields& fields, const std::string& field) {
    static constexpr std::pair<std::string_view, Role> kRoles[] = {{"user", Role::kUser},
                                                                   {"assistant", Role::kAssistant},
                                                                   {"system", Role::kSystem},
                                                                   {"developer", Role::kSystem}};
    const std::string name = required_string(fields, "role");
    for (const auto& [known, role] : kRoles) {
      if (name != known) continue;
      std::vector<ContentPart> parts = parse_parts(fields, field, "content");
      if (role == Role::kAssistant) {
        std::vector<ContentPart>& content = turn().content;
        content.insert(content.end(), parts.begin(), parts.end());
      } else {
        Message message{.role = role};
        message.content = std::move(parts);
        add(std::move(message));
      }
      return;
    }
    fields.refuse("role", "user, assistant, system or developer");
  }

  static std::vector<ContentPart> parse_parts(RequestFields& fields, const std::string& path,
                                              std::string_view name) {
    std::vector<ContentPart> parts;
    const JsonValue* content = fields.get(name);
    if (!content) return parts;
    if (content->string()) return {{*content->string(), std::nullopt}};
    if (!content->array()) fields.refuse(name, "a string or a list of parts");
    for (size_t i = 0; i < content->array()->size(); ++i) {
      const std::string field = fmt::format("{}.{}[{}]", path, name, i);
      parts.push_back(parse_part((*content->array())[i], field));
    }
    return parts;
  }

  static ContentPart parse_part(const JsonValue& part, const std::string& field) {
    if (!part.is_object())
      throw ApiError(400, fmt::format("{} is {}, expected an object", field, part.kind_name()),
                     field, "invalid_value");
    RequestFields fields(part, field + ".");
    const std::string type = required_string(fields, "type");
    if (type == "input_text" || type == "output_text" || type == "text")
      return {required_string(fields, "text"), std::nullopt};
    if (type == "refusal") return {required_string(fields, "refusal"), std::nullopt};
    if (type == "input_image") {
      const std::string url = required_string(fields, "image_url");
      if (url.empty()) fields.refuse("image_url", "a URL");
      return {{}, ImageRecord{"url", JsonValue(url)}};
    }
    fields.refuse("type", "input_text, output_text, text or input_image");
  }

  static std::string joined_texts(RequestFields& fields, std::string_view name) {
    std::string text;
    const JsonValue* list = fields.get(name);
    if (!list) return text;
    if (!list->array()) fields.refuse(name, "a list of parts");
    for (const JsonValue& part : *list->array()) {
      const JsonValue* piece = part.find_set("text");
      if (!piece || !piece->string()) continue;
      if (!text.empty()) text += "\n\n";
      text += *piece->string();
    }
    return text;
  }

  static std::string reasoning_text(RequestFields& fields) {
    std::string text = joined_texts(fields, "content");
    if (!text.empty()) return text;
    if (const auto sealed = fields.string("encrypted_content")) text = unseal_reasoning(*sealed);
    return text.empty() ? joined_texts(fields, "summary") : text;
  }

  void add_call(RequestFields& fields, JsonValue arguments) {
    const QualifiedName name{.name_space = fields.string("namespace").value_or(""),
                             .bare_name = required_string(fields, "name"),
                             .description = {}};
    if (name.bare_name.empty()) fields.refuse("name", "the name of a tool");
    turn().tool_calls.push_back(
        {required_string(fields, "call_id"), name.printed(), std::move(arguments)});
  }

  // What another agent of the client's says; parts that are no text cannot be read here.
  void add_agent_message(RequestFields& fields) {
    const JsonValue* content = fields.get("content");
    const std::string text =
        content && content->string() ? *content->string() : joined_texts(fields, "content");
    if (!text.empty()) add_text(Role::kUser, text);
  }

  ResponsesInput result_;
  bool in_turn_ = false;
};

}  // namespace

ResponsesInput responses_input(RequestFields& fields) {
  InputReader reader;
  if (const auto instructions = fields.string("instructions");
      instructions && !instructions->empty())
    reader.add_text(Role::kSystem, *instructions);
  const JsonValue* input = fields.get("input");
  if (input && input->string()) {
    reader.add_text(Role::kUser, *input->string());
  } else if (input && input->array()) {
    for (size_t i = 0; i < input->array()->size(); ++i)
      reader.add_item((*input->array())[i], fmt::format("input[{}]", i));
  } else {
    fields.refuse("input", "a string or a list of items");
  }
  ResponsesInput result = reader.take();
  if (result.messages.empty()) fields.refuse("input", "at least one message");
  return result;
}

std::string seal_reasoning(const std::string& text) {
  std::string encoded(4 * ((text.size() + 2) / 3) + 1, '\0');
  const int length = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(encoded.data()),
                                     reinterpret_cast<const unsigned char*>(text.data()),
                                     static_cast<int>(text.size()));
  encoded.resize(static_cast<size_t>(length));
  return std::string(kSealHead) + encoded;
}

std::string unseal_reasoning(const std::string& sealed) {
  if (!sealed.starts_with(kSealHead)) return {};
  const std::string_view encoded = std::string_view(sealed).substr(kSealHead.size());
  std::string text(encoded.size() / 4 * 3 + 1, '\0');
  const int length = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                     reinterpret_cast<const unsigned char*>(encoded.data()),
                                     static_cast<int>(encoded.size()));
  if (length < 0) return {};
  const size_t padding = encoded.ends_with("==") ? 2 : encoded.ends_with("=") ? 1 : 0;
  if (static_cast<size_t>(length) < padding) return {};
  text.resize(static_cast<size_t>(length) - padding);
  return repair_utf8(text);
}

}  // namespace peregrine
