// The body of a chat completion request, read and checked.
#pragma once

#include <string>
#include <vector>

#include "server/service.h"
#include "text/chat.h"

namespace peregrine {

struct OpenAiChatRequest {
  ChatRequest chat;
  std::string model;
  SamplingParams sampling;
  int64_t max_tokens = 0;
  std::vector<std::string> stop;
  int choices = 1;
  bool parallel_calls = true;
  bool stream = false, include_usage = false;
  std::string warning;  // names ignored fields; empty: none
};

// Throws ApiError 400 or Error(kInvalidArgument), both naming the field.
OpenAiChatRequest parse_openai_chat(const JsonValue& body, const Service& service);

// The members of the body that parse_chat_request() reads; shared with /tokenize.
void know_chat_fields(class RequestFields& fields);

}  // namespace peregrine
