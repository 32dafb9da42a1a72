// Writes OpenAI responses: as one object, or as a stream of events that ends with the same object
// (spec: api.md sections 8.2, 8.3).
//
// Assumes output in the order reasoning, message, calls; items never overlap.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/answer.h"
#include "text/chat.h"

namespace peregrine {

struct ResponsesAnswerOptions {
  std::string id, model;
  int64_t created = 0;
  bool stream = false;
  bool summary = false;  // reasoning is shown as a summary as well
  bool sealed = false;   // reasoning items carry encrypted_content
  std::set<std::string, std::less<>> custom_tools;
  std::vector<Tool> tools;                                // decide how called names are returned
  std::vector<std::pair<std::string, std::string>> echo;  // settings to repeat: names and JSON
  HttpHeaders headers;                                    // extra ones
};

std::shared_ptr<AnswerFormatter> make_responses_answer(std::shared_ptr<Exchange> exchange,
                                                       ResponsesAnswerOptions options);

}  // namespace peregrine
