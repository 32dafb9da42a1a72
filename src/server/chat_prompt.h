// From a conversation to what the engine runs, the same for every chat protocol.
#pragma once

#include <string>
#include <vector>

#include "server/generation.h"
#include "server/service.h"
#include "text/chat.h"

namespace peregrine {

struct ChatPrompt {
  std::vector<int32_t> ids;
  OutputStart start = OutputStart::kContent;
  bool parse_tools = false;
  std::string forced;  // text of a forced call's opening, which the ids end with
};

// Renders and tokenises. Throws ApiError 400 for images and for conversations that end with the
// assistant's turn.
//
// There is no constrained decoding: tool_choice "required" and a named function are steered by
// ending the prompt with the opening of the call (for a named function with its name), after an
// empty reasoning when thinking is on. What follows is the model's own.
ChatPrompt make_chat_prompt(const Service& service, const ChatRequest& request);

}  // namespace peregrine
