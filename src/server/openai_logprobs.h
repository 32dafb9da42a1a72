// Log-probabilities as chat completions write them (spec: api.md section 3). Values are natural
// logarithms of the model's distribution at temperature 1, before filters and penalties.
#pragma once

#include <span>

#include "server/json_writer.h"
#include "server/token_channels.h"
#include "text/tokenizer.h"

namespace peregrine {

// {"content":[...],"reasoning_content":[...]}; the second only when there are such tokens.
void write_chat_logprobs(JsonWriter& w, std::span<const VisibleToken> tokens,
                         const Tokenizer& tokenizer);

// The text of a token on its own, with U+FFFD for parts of characters.
std::string token_text(const Tokenizer& tokenizer, int32_t id);

}  // namespace peregrine
