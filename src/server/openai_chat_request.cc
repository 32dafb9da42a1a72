#include "server/openai_chat_request.h"

#include <limits>

#include "server/generation_fields.h"

namespace peregrine {
namespace {

// The defaults of the hosted service.
constexpr int64_t kDefaultTokens = 8192, kDefaultThinkingTokens = 65536;

// Accepted without effect.
constexpr const char* kIgnored[] = {
    "user",         "user_id",          "metadata",          "store",
    "service_tier", "prompt_cache_key", "safety_identifier", "verbosity",
    "modalities"};

void parse_stream(RequestFields& fields, OpenAiChatRequest& request) {
  request.stream = fields.boolean("stream").value_or(false);
  const JsonValue* options = fields.get("stream_options");
  if (!options) return;
  if (!options->is_object()) fields.refuse("stream_options", "an object");
  RequestFields inner(*options, "stream_options.");
  request.include_usage = inner.boolean("include_usage").value_or(false);
}

void parse_logprobs(RequestFields& fields, SamplingParams& sampling) {
  const bool wanted = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top && *top > 0 && !wanted)
    throw ApiError(400, "top_logprobs is set, which needs logprobs: true", "top_logprobs",
                   "invalid_value");
  if (wanted) sampling.logprobs = static_cast<int>(top.value_or(0));
}

}  // namespace

void know_chat_fields(RequestFields& fields) {
  for (const char* name : {"messages", "tools", "tool_choice", "response_format", "thinking",
                           "reasoning_effort", "drop_thinking", "chat_template_kwargs"})
    fields.know(name);
}

OpenAiChatRequest parse_openai_chat(const JsonValue& body, const Service& service) {
  RequestFields fields(body);
  know_chat_fields(fields);
  for (const char* name : kIgnored) fields.know(name);
  OpenAiChatRequest request;
  request.model = parse_model(fields, service);
  request.chat = parse_chat_request(body);
  request.sampling = parse_sampling(fields);
  parse_logprobs(fields, request.sampling);
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const auto completion_tokens = fields.integer("max_completion_tokens", 1, kMost);
  const auto tokens = fields.integer("max_tokens", 1, kMost);
  request.max_tokens = completion_tokens       ? *completion_tokens
                       : tokens                ? *tokens
                       : request.chat.thinking ? kDefaultThinkingTokens
                                               : kDefaultTokens;
  request.stop = fields.strings("stop", kMaxStopStrings);
  request.choices = static_cast<int>(fields.integer("n", 1, kMaxChoices).value_or(1));
  request.parallel_calls = fields.boolean("parallel_tool_calls").value_or(true);
  parse_stream(fields, request);
  request.warning = unknown_fields_warning(fields.unknown());
  return request;
}

}  // namespace peregrine
