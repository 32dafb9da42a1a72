// Writes text completions, as one object or as a stream.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/answer.h"

namespace peregrine {

struct CompletionAnswerOptions {
  std::string id, model;
  int64_t created = 0;
  size_t choices_per_prompt = 1;
  std::vector<std::string> echoes;  // per choice: text to begin with; empty: none
  size_t choices = 1;
  bool stream = false, include_usage = false, logprobs = false;
  HttpHeaders headers;
};

std::shared_ptr<AnswerFormatter> make_completion_answer(const Service& service,
                                                        std::shared_ptr<Exchange> exchange,
                                                        CompletionAnswerOptions options);

}  // namespace peregrine
