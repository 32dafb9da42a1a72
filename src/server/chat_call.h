// A chat request whatever protocol it came in, and its way into the engine.
//
// Owns: what Anthropic Messages and OpenAI Responses have in common behind their own wording. A
// protocol fills a ChatCall and makes the formatter; the rest is here.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/answer.h"
#include "server/service.h"
#include "text/chat.h"

namespace peregrine {

struct ChatCall {
  ChatRequest chat;
  std::string model;  // as the request has it
  SamplingParams sampling;
  int64_t max_tokens = 0;
  std::vector<std::string> stop;
  bool parallel_calls = true;
  bool stream = false;
  std::string warning;  // names ignored fields; empty: none
};

// Gives the conversation its tools and schema, after its messages and tool choice are known. Throws
// ApiError 400 when the choice names none of the tools.
void set_tools(ChatRequest& chat, std::vector<Tool> tools, std::optional<JsonValue> schema);

struct ChatOutline {
  int64_t prompt_tokens = 0;
  HttpHeaders headers;  // extra ones of the answer
};
using MakeFormatter = std::function<std::shared_ptr<AnswerFormatter>(const ChatOutline&)>;

// Renders and submits; `id` is the answer's. Throws what make_chat_prompt() and start_answer() do.
void start_chat_call(Service& service, const std::shared_ptr<Exchange>& exchange, ChatCall call,
                     const std::string& endpoint, const std::string& id, const MakeFormatter& make);

}  // namespace peregrine
