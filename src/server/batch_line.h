// One line of a batch file, and one line of its results.
//
// Owns: what is checked before a request reaches its handler, and the text of a result, whose "id"
// carries the number of the input line so that the results are the journal of a run. Refuses:
// nothing by throwing; a line that is no request says so in `problem`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace peregrine {

struct BatchLine {
  std::optional<std::string> custom_id;  // absent when the line has none that can be read
  std::string url;                       // "/v1/chat/completions" or "/v1/completions"
  std::string body;                      // a JSON object, the conversation in front
  int64_t wanted_tokens = 0;             // the answer's limit; 0: the request names none
  std::string code, problem;             // one sentence; empty: the line is a request
};

// `text`: without its line end.
BatchLine parse_batch_line(std::string_view text);

struct BatchResponse {
  int status = 200;
  std::string request_id;
  std::string body;  // JSON
};

// Both with a line end.
std::string batch_result(int64_t line, const BatchLine& request, const BatchResponse& response);
std::string batch_refusal(int64_t line, const BatchLine& refused);

// The head of a result; the rest is not looked at, results may be long.
struct BatchResultHead {
  int64_t line = 0;  // of the input, from 1
  std::optional<std::string> custom_id;
  bool failed = false;  // an error, or a status other than 200
};

// `text`: without its line end. Empty for anything that batch_result() and batch_refusal() do not
// write.
std::optional<BatchResultHead> parse_batch_result(std::string_view text);

}  // namespace peregrine
