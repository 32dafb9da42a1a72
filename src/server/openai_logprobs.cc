#include "server/openai_logprobs.h"

#include <algorithm>

#include "text/unicode.h"

namespace peregrine {
namespace {

// JSON has no minus infinity; clients know this value for it.
constexpr double kNever = -9999.0;

void write_token(JsonWriter& w, const TokenLogprob& token, const Tokenizer& tokenizer) {
  w.member("token", token_text(tokenizer, token.id));
  w.member("logprob", std::max(token.logprob, kNever));
  w.key("bytes").begin_array();
  for (const char byte : tokenizer.token_bytes(token.id)) w.value(static_cast<uint8_t>(byte));
  w.end_array();
}

void write_list(JsonWriter& w, std::span<const VisibleToken> tokens, bool reasoning,
                const Tokenizer& tokenizer) {
  w.begin_array();
  for (const VisibleToken& token : tokens) {
    if (token.reasoning != reasoning) continue;
    w.begin_object();
    write_token(w, token.logprobs.chosen, tokenizer);
    w.key("top_logprobs").begin_array();
    for (const TokenLogprob& top : token.logprobs.top) {
      w.begin_object();
      write_token(w, top, tokenizer);
      w.end_object();
    }
    w.end_array().end_object();
  }
  w.end_array();
}

}  // namespace

std::string token_text(const Tokenizer& tokenizer, int32_t id) {
  return repair_utf8(tokenizer.token_bytes(id));
}

void write_chat_logprobs(JsonWriter& w, std::span<const VisibleToken> tokens,
                         const Tokenizer& tokenizer) {
  w.begin_object().key("content");
  write_list(w, tokens, false, tokenizer);
  if (std::any_of(tokens.begin(), tokens.end(), [](const auto& t) { return t.reasoning; })) {
    w.key("reasoning_content");
    write_list(w, tokens, true, tokenizer);
  }
  w.end_object();
}

}  // namespace peregrine
