// The body of an OpenAI Responses request, read and checked (spec: api.md section 8.1).
//
// Refuses what needs a memory of earlier responses: previous_response_id, conversation, background.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/chat_call.h"
#include "server/request_fields.h"

namespace peregrine {

struct ResponsesRequest {
  ChatCall call;
  std::set<std::string, std::less<>> custom_tools;
  std::vector<std::string> ignored;  // items, tools and fields without effect
  bool summary = false;              // reasoning is shown as a summary as well
  bool sealed = false;               // reasoning items carry encrypted_content
  // The settings that a response repeats: names and JSON.
  std::vector<std::pair<std::string, std::string>> echo;
};

ResponsesRequest parse_responses(const JsonValue& body, const Service& service);

// The part that needs no model: everything but names, sampling and limits.
ChatRequest responses_chat(RequestFields& fields, ResponsesRequest& request);

}  // namespace peregrine
