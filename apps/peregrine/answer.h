// Produces one answer on a synchronised session and hands it on while it grows; shared by generate
// and chat.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/generator.h"
#include "text/output_parser.h"

namespace peregrine {

struct AnswerRequest {
  GenerateOptions generate;
  bool parse = false;  // split reasoning, content and calls; else everything is content
  OutputStart start = OutputStart::kContent;
  bool parse_tools = false;
};

struct AnswerCall {
  std::string id, name, arguments;
};

struct Answer {
  std::vector<int32_t> ids;  // as sampled, the end token included
  std::string text, reasoning;
  std::vector<AnswerCall> calls;
  std::vector<TokenLogprobs> logprobs;  // one a token, when asked for
  std::string finish_reason;            // stop, length, tool_calls or interrupted
  GenerateStats stats;
  double seconds = 0;         // from the first token, which the prompt's step decides, to the end
  uint64_t weight_bytes = 0;  // read by the model steps
  bool interrupted = false;
};

// Needs an InterruptGuard; Ctrl-C ends the answer after the running step. What on_event throws
// ends it too.
Answer make_answer(Session& session, const AnswerRequest& request,
                   const std::function<void(const OutputEvent&)>& on_event);

// Prints events to standard output as they come: reasoning dim on a terminal and between tags
// elsewhere, calls in brackets.
class AnswerPrinter {
 public:
  AnswerPrinter();
  void print(const OutputEvent& event);
  // Closes what is open and ends the last line.
  void finish();

 private:
  void open_reasoning();
  void close_reasoning();

  bool terminal_;
  bool in_reasoning_ = false;
  bool at_line_start_ = true;
};

}  // namespace peregrine
