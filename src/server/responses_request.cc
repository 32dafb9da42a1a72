#include "server/responses_request.h"

#include <limits>

#include "server/generation_fields.h"
#include "server/json_writer.h"
#include "server/responses_input.h"
#include "server/responses_tools.h"

namespace peregrine {
namespace {

constexpr int64_t kDefaultTokens = 8192, kDefaultThinkingTokens = 65536;

// Accepted without effect.
constexpr const char* kIgnored[] = {"metadata",          "store",
                                    "truncation",        "user",
                                    "prompt_cache_key",  "prompt_cache_retention",
                                    "client_metadata",   "service_tier",
                                    "safety_identifier", "stream_options",
                                    "top_logprobs",      "max_tool_calls"};

void refuse_stored_state(RequestFields& fields) {
  for (const char* name : {"previous_response_id", "conversation"}) {
    if (fields.get(name))
      throw ApiError(400,
                     std::string(name) +
                         " is set, but responses are not stored here: send the "
                         "whole conversation as input",
                     name, "unsupported_value");
  }
  if (fields.boolean("background").value_or(false))
    throw ApiError(400, "background is true, but responses are not stored here, expected false",
                   "background", "unsupported_value");
}

void parse_reasoning(RequestFields& fields, ResponsesRequest& request, ChatRequest& chat) {
  const JsonValue* reasoning = fields.get("reasoning");
  if (!reasoning) return;
  if (!reasoning->is_object()) fields.refuse("reasoning", "an object");
  if (const JsonValue* effort = reasoning->find_set("effort")) {
    const int value = parse_effort(*effort, "reasoning.effort");
    value == 0 ? void(chat.thinking = false) : void(chat.effort = value);
  }
  RequestFields members(*reasoning, "reasoning.");
  request.summary = members.string("summary").value_or("none") != "none";
}

std::optional<JsonValue> parse_format(RequestFields& fields, ChatRequest& chat) {
  const JsonValue* holder = fields.get("text");
  const JsonValue* format = holder ? holder->find_set("format") : nullptr;
  if (!format) return std::nullopt;
  if (!format->is_object()) fields.refuse("text", "an object whose format is an object");
  RequestFields members(*format, "text.format.");
  const std::string type = members.string("type").value_or("");
  if (type == "text") return std::nullopt;
  if (type == "json_object") {
    chat.response_format = ResponseFormat::kJsonObject;
    return std::nullopt;
  }
  if (type != "json_schema") members.refuse("type", "text, json_object or json_schema");
  const JsonValue* schema = members.get("schema");
  if (!schema || !schema->is_object()) members.refuse("schema", "an object");
  return *schema;
}

bool wants_sealed_reasoning(RequestFields& fields) {
  const JsonValue* include = fields.get("include");
  if (!include) return false;
  if (!include->array()) fields.refuse("include", "a list of strings");
  for (const JsonValue& name : *include->array())
    if (name.string() && *name.string() == "reasoning.encrypted_content") return true;
  return false;
}

// The settings that a response repeats.
std::vector<std::pair<std::string, std::string>> make_echo(const JsonValue& body,
                                                           const ChatCall& call) {
  static constexpr std::pair<const char*, const char*> kEchoed[] = {
      {"instructions", "null"},
      {"tools", "[]"},
      {"tool_choice", "\"auto\""},
      {"max_output_tokens", "null"},
      {"reasoning", "null"},
      {"text", R"({"format":{"type":"text"}})"},
      {"metadata", "{}"},
      {"truncation", "\"disabled\""},
      {"user", "null"}};
  std::vector<std::pair<std::string, std::string>> echo;
  for (const auto& [name, otherwise] : kEchoed) {
    const JsonValue* value = body.find_set(name);
    echo.emplace_back(name, value ? value->dump() : otherwise);
  }
  echo.emplace_back("parallel_tool_calls", call.parallel_calls ? "true" : "false");
  echo.emplace_back("temperature", JsonWriter().value(call.sampling.temperature).text());
  echo.emplace_back("top_p", JsonWriter().value(call.sampling.top_p).text());
  echo.emplace_back("previous_response_id", "null");
  echo.emplace_back("store", "false");
  echo.emplace_back("background", "false");
  return echo;
}

}  // namespace

ChatRequest responses_chat(RequestFields& fields, ResponsesRequest& request) {
  ChatRequest chat;
  ResponsesInput input = responses_input(fields);
  chat.messages = std::move(input.messages);
  parse_reasoning(fields, request, chat);
  ResponsesTools tools = responses_tools(fields, chat);
  request.custom_tools = std::move(tools.custom);
  chat.schema_field = "text.format.schema";
  std::optional<JsonValue> schema = parse_format(fields, chat);
  set_tools(chat, std::move(tools.tools), std::move(schema));
  request.sealed = wants_sealed_reasoning(fields);
  request.ignored = std::move(input.dropped);
  request.ignored.insert(request.ignored.end(), tools.dropped.begin(), tools.dropped.end());
  return chat;
}

ResponsesRequest parse_responses(const JsonValue& body, const Service& service) {
  RequestFields fields(body);
  for (const char* name : kIgnored) fields.know(name);
  ResponsesRequest request;
  ChatCall& call = request.call;
  refuse_stored_state(fields);
  call.model = parse_model(fields, service);
  call.chat = responses_chat(fields, request);
  call.sampling = parse_sampling(fields);
  call.max_tokens = fields.integer("max_output_tokens", 1, std::numeric_limits<int32_t>::max())
                        .value_or(call.chat.thinking ? kDefaultThinkingTokens : kDefaultTokens);
  call.parallel_calls = fields.boolean("parallel_tool_calls").value_or(true);
  call.stream = fields.boolean("stream").value_or(false);
  request.echo = make_echo(body, call);
  for (std::string& name : fields.unknown()) request.ignored.push_back(std::move(name));
  call.warning = unknown_fields_warning(request.ignored);
  return request;
}

}  // namespace peregrine
