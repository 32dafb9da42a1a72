// From a conversation to what the engine runs, the same for every chat protocol.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/generation.h"
#include "server/http.h"
#include "server/sampled_turns.h"
#include "server/service.h"
#include "text/chat.h"

namespace peregrine {

struct ChatPrompt {
  std::vector<int32_t> ids;
  OutputStart start = OutputStart::kContent;
  bool parse_tools = false;
  std::string forced;  // text of a forced call's opening, which the ids end with
  std::vector<int32_t> forced_ids;
  std::shared_ptr<const OutputConstraint> constraint;  // of the answer; null: none
  // Of the conversation so far; empty: the answer is not worth remembering, since it continues a
  // text that the client gave.
  std::optional<ConversationKey> conversation;
};

// Renders and tokenises; earlier answers of this server become the tokens that were sampled.
// `http`: names the conversation and whose it is (conversation.h). Throws ApiError 400 for images
// and for conversations that end with the assistant's turn.
//
// tool_choice "required" and a named function end the prompt with the opening of the call (for a
// named function with its name), after an empty reasoning when thinking is on; what follows is held
// to the form of calls, as the content is to response_format (output_format.h).
ChatPrompt make_chat_prompt(const Service& service, const ChatRequest& request,
                            const HttpRequest& http);

// Keeps a finished answer for the next request; for AnswerPlan::on_end.
std::function<void(size_t, const GenerationEnd&)> remember_answer(Service& service,
                                                                  const ChatPrompt& prompt);

}  // namespace peregrine
