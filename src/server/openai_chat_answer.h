// Writes chat completions: as one object, or as a stream of chunks (spec: api.md sections 3, 4).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/answer.h"
#include "text/chat.h"

namespace peregrine {

struct OpenAiAnswerOptions {
  std::string id, model;
  int64_t created = 0;
  int choices = 1;
  bool include_usage = false;
  bool logprobs = false;
  bool thinking = false;    // the answer may hold reasoning
  std::vector<Tool> tools;  // decide how called names are returned
  HttpHeaders headers;      // extra ones
};

std::shared_ptr<AnswerFormatter> make_chat_object(const Service& service,
                                                  std::shared_ptr<Exchange> exchange,
                                                  OpenAiAnswerOptions options);
std::shared_ptr<AnswerFormatter> make_chat_stream(const Service& service,
                                                  std::shared_ptr<Exchange> exchange,
                                                  OpenAiAnswerOptions options);

}  // namespace peregrine
