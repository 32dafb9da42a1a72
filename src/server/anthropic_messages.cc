#include "server/anthropic_messages.h"

#include <limits>

#include "server/anthropic_answer.h"
#include "server/anthropic_chat.h"
#include "server/chat_call.h"
#include "server/chat_prompt.h"
#include "server/generation_fields.h"
#include "server/json_writer.h"

namespace peregrine {
namespace {

// Accepted without effect.
constexpr const char* kIgnored[] = {"metadata",      "container",     "mcp_servers",
                                    "betas",         "cache_control", "context_management",
                                    "inference_geo", "service_tier",  "speed"};

ChatCall parse_messages_request(const JsonValue& body, const Service& service) {
  RequestFields fields(body);
  for (const char* name : kIgnored) fields.know(name);
  ChatCall call;
  call.model = parse_model(fields, service);
  call.chat = anthropic_chat(body, fields);
  call.sampling = parse_sampling(fields);
  const auto max_tokens = fields.integer("max_tokens", 1, std::numeric_limits<int32_t>::max());
  if (!max_tokens) fields.refuse("max_tokens", "an integer of at least 1");
  call.max_tokens = *max_tokens;
  call.stop = fields.strings("stop_sequences", kMaxStopStrings);
  call.parallel_calls = anthropic_parallel_calls(body);
  call.stream = fields.boolean("stream").value_or(false);
  call.warning = unknown_fields_warning(fields.unknown());
  return call;
}

}  // namespace

void handle_anthropic_messages(Service& service, const std::shared_ptr<Exchange>& exchange) {
  const JsonValue body = parse_body(exchange->request());
  ChatCall call = parse_messages_request(body, service);
  AnthropicAnswerOptions options{.id = random_id("msg_"), .model = call.model};
  const std::string id = options.id;
  const bool stream = call.stream;
  start_chat_call(service, exchange, std::move(call), "messages", id,
                  [&](const ChatOutline& outline) {
                    options.prompt_tokens = outline.prompt_tokens;
                    options.headers = outline.headers;
                    return stream ? make_anthropic_stream(exchange, std::move(options))
                                  : make_anthropic_object(exchange, std::move(options));
                  });
}

void handle_anthropic_count_tokens(Service& service, const std::shared_ptr<Exchange>& exchange) {
  const JsonValue body = parse_body(exchange->request());
  RequestFields fields(body);
  parse_model(fields, service);
  const ChatPrompt prompt =
      make_chat_prompt(service, anthropic_chat(body, fields), exchange->request());
  JsonWriter w;
  w.begin_object().member("input_tokens", prompt.ids.size()).end_object();
  exchange->respond({.body = w.take()});
}

}  // namespace peregrine
