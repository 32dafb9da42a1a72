// Writes Anthropic messages: as one object, or as a stream of events (spec: api.md sections 7.2,
// 7.3).
//
// Assumes output in the order reasoning, text, calls. Blocks never overlap, and a block begins only
// when there is something to put into it.
#pragma once

#include <memory>
#include <string>

#include "server/answer.h"

namespace peregrine {

struct AnthropicAnswerOptions {
  std::string id, model;
  int64_t prompt_tokens = 0;  // shown when a stream begins; the end tells how many were cached
  HttpHeaders headers;        // extra ones
};

std::shared_ptr<AnswerFormatter> make_anthropic_object(std::shared_ptr<Exchange> exchange,
                                                       AnthropicAnswerOptions options);
std::shared_ptr<AnswerFormatter> make_anthropic_stream(std::shared_ptr<Exchange> exchange,
                                                       AnthropicAnswerOptions options);

}  // namespace peregrine
