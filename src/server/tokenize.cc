#include "server/tokenize.h"

#include <fmt/format.h>

#include "server/json_writer.h"
#include "server/openai_chat_request.h"
#include "server/request_fields.h"
#include "text/prompt.h"

namespace peregrine {
namespace {

std::vector<int32_t> tokens_of(const JsonValue& body, RequestFields& fields,
                               const Tokenizer& tokenizer) {
  if (body.find_set("messages"))
    return encode_prompt(render_prompt(parse_chat_request(body)), tokenizer);
  const bool special = fields.boolean("add_special_tokens").value_or(true);
  const std::optional<std::string> prompt = fields.string("prompt");
  if (!prompt) fields.refuse("prompt", "a string, or messages instead");
  return special ? encode_completion(*prompt, tokenizer)
                 : tokenizer.encode(*prompt, SpecialTokens::kRecognise);
}

}  // namespace

void handle_tokenize(Service& service, const std::shared_ptr<Exchange>& exchange) {
  const JsonValue body = parse_body(exchange->request());
  RequestFields fields(body);
  const std::vector<int32_t> ids = tokens_of(body, fields, service.tokenizer);
  JsonWriter w;
  w.begin_object().member("count", ids.size()).member("max_model_len", service.context_tokens());
  w.key("tokens").begin_array();
  for (const int32_t id : ids) w.value(id);
  w.end_array().end_object();
  exchange->respond({.body = w.take()});
}

void handle_detokenize(Service& service, const std::shared_ptr<Exchange>& exchange) {
  const JsonValue body = parse_body(exchange->request());
  RequestFields fields(body);
  const JsonValue* tokens = fields.get("tokens");
  if (!tokens || !tokens->array()) fields.refuse("tokens", "a list of token ids");
  std::vector<int32_t> ids;
  for (size_t i = 0; i < tokens->array()->size(); ++i) {
    const auto id = (*tokens->array())[i].as_int64();
    if (!id || *id < 0 || *id >= service.tokenizer.vocab_size())
      throw ApiError(400,
                     fmt::format("tokens[{}] is {}, expected an id from 0 to {}", i,
                                 (*tokens->array())[i].dump().substr(0, 40),
                                 service.tokenizer.vocab_size() - 1),
                     "tokens", "invalid_value");
    ids.push_back(static_cast<int32_t>(*id));
  }
  JsonWriter w;
  w.begin_object().member("prompt", service.tokenizer.decode(ids)).end_object();
  exchange->respond({.body = w.take()});
}

}  // namespace peregrine
