// The conversation of an OpenAI Responses request (spec: api.md section 8.1).
//
// Owns: instructions and input. Neighbouring items of the assistant's side (reasoning, messages,
// calls) form one turn. Refuses malformed items and content that is neither text nor image, as
// ApiError 400 that names the item; items that say nothing to the model (references, server tools'
// calls) are dropped and listed.
#pragma once

#include <string>
#include <vector>

#include "server/request_fields.h"
#include "text/chat.h"

namespace peregrine {

struct ResponsesInput {
  std::vector<Message> messages;
  std::vector<std::string> dropped;  // "input[3] (item_reference)"
};

ResponsesInput responses_input(RequestFields& fields);

// The encrypted_content of a reasoning item. Nothing is secret here: it is the text itself, in a
// form that clients carry through unseen. Decoding gives an empty text for what is not ours.
std::string seal_reasoning(const std::string& text);
std::string unseal_reasoning(const std::string& sealed);

}  // namespace peregrine
