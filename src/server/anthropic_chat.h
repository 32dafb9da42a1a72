// The conversation of an Anthropic Messages request (spec: api.md section 7.1).
//
// Owns: system, messages with their content blocks, tools, tool_choice, thinking and output_config;
// the other members are the caller's. Blocks of one user turn keep their order. Refuses documents,
// search results and server tools, which the model cannot be given, as ApiError 400 that names the
// block; redacted thinking is dropped.
#pragma once

#include "server/request_fields.h"
#include "text/chat.h"

namespace peregrine {

// `fields` reads `body` and learns which members are used here. A last message of the assistant is
// continued. Thinking is on unless the request says otherwise.
ChatRequest anthropic_chat(const JsonValue& body, RequestFields& fields);

// tool_choice.disable_parallel_tool_use, negated.
bool anthropic_parallel_calls(const JsonValue& body);

}  // namespace peregrine
