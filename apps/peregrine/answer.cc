#include "answer.h"

#include <algorithm>
#include <chrono>

#include "engine/session_impl.h"
#include "engine/weight_traffic.h"
#include "interrupt.h"
#include "output.h"

namespace peregrine {
namespace {

void collect(const OutputEvent& event, Answer& answer) {
  switch (event.kind) {
    case OutputEvent::Kind::kReasoning:
      answer.reasoning += event.text;
      break;
    case OutputEvent::Kind::kContent:
      answer.text += event.text;
      break;
    case OutputEvent::Kind::kCallBegin:
      answer.calls.push_back({event.id, event.text, ""});
      break;
    case OutputEvent::Kind::kArguments:
      answer.calls.back().arguments += event.text;
      break;
    case OutputEvent::Kind::kCallEnd:
      break;
  }
}

const char* name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kToolCalls:
      return "tool_calls";
    default:
      return "stop";
  }
}

// Decoded text to events: through the parser in chats, as content otherwise.
class EventStream {
 public:
  EventStream(const AnswerRequest& request, const Tokenizer& tokenizer) : detokenizer_(tokenizer) {
    if (request.parse)
      parser_.emplace(OutputParser::Options{.start = request.start,
                                            .parse_tools = request.parse_tools,
                                            .make_call_id = random_call_id});
  }

  std::vector<OutputEvent> push(int32_t id) { return events(detokenizer_.push(id)); }
  std::vector<OutputEvent> finish(StopCause cause) {
    std::vector<OutputEvent> all = events(detokenizer_.flush());
    if (!parser_) {
      reason_ = cause == StopCause::kLength ? FinishReason::kLength : FinishReason::kStop;
      return all;
    }
    std::vector<OutputEvent> rest = parser_->finish(cause);
    all.insert(all.end(), std::make_move_iterator(rest.begin()),
               std::make_move_iterator(rest.end()));
    reason_ = parser_->finish_reason();
    return all;
  }
  bool complete() const { return parser_ && parser_->calls_complete(); }
  FinishReason reason() const { return reason_; }

 private:
  std::vector<OutputEvent> events(std::string text) {
    if (parser_) return parser_->push(text);
    if (text.empty()) return {};
    return {{OutputEvent::Kind::kContent, std::move(text)}};
  }

  Detokenizer detokenizer_;
  std::optional<OutputParser> parser_;
  FinishReason reason_ = FinishReason::kStop;
};

}  // namespace

Answer make_answer(Session& session, const AnswerRequest& request,
                   const std::function<void(const OutputEvent&)>& on_event) {
  Session::Impl& inside = session.impl();
  WeightTraffic traffic(inside.config(), inside.backend());
  traffic.watch(inside.forward);
  struct Unwatch {
    ForwardHooks& hooks;
    ~Unwatch() { hooks.after_routing = nullptr; }
  } unwatch{inside.forward.hooks};

  Generator generator(session, request.generate);
  EventStream stream(request, inside.model->impl().tokenizer);
  Answer answer;
  const auto pass_on = [&](const std::vector<OutputEvent>& events) {
    for (const OutputEvent& event : events) {
      collect(event, answer);
      on_event(event);
    }
  };
  const std::vector<int32_t>& stops = request.generate.stop_ids;
  const auto start = std::chrono::steady_clock::now();
  while (!stream.complete()) {
    if (InterruptGuard::requested()) {
      answer.interrupted = true;
      break;
    }
    const auto ids = generator.next();
    if (ids.empty()) break;
    const auto logprobs = generator.logprobs();
    answer.ids.insert(answer.ids.end(), ids.begin(), ids.end());
    answer.logprobs.insert(answer.logprobs.end(), logprobs.begin(), logprobs.end());
    for (const int32_t id : ids)
      if (std::find(stops.begin(), stops.end(), id) == stops.end()) pass_on(stream.push(id));
  }
  answer.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  pass_on(stream.finish(generator.end() == GenerateEnd::kLength ? StopCause::kLength
                                                                : StopCause::kEndOfTurn));
  answer.finish_reason = answer.interrupted ? "interrupted" : name_of(stream.reason());
  answer.stats = generator.stats();
  answer.weight_bytes = traffic.bytes();
  return answer;
}

AnswerPrinter::AnswerPrinter() : terminal_(output_is_terminal()) {}

void AnswerPrinter::print(const OutputEvent& event) {
  std::string text = event.text;
  switch (event.kind) {
    case OutputEvent::Kind::kReasoning:
      open_reasoning();
      break;
    case OutputEvent::Kind::kCallBegin:
      close_reasoning();
      text = (at_line_start_ ? "[" : "\n[") + event.text + " ";
      break;
    case OutputEvent::Kind::kCallEnd:
      text = "]\n";
      break;
    case OutputEvent::Kind::kContent:
      close_reasoning();
      break;
    case OutputEvent::Kind::kArguments:
      break;
  }
  if (text.empty()) return;
  write_output(text);
  at_line_start_ = text.back() == '\n';
}

void AnswerPrinter::open_reasoning() {
  if (in_reasoning_) return;
  in_reasoning_ = true;
  write_output(terminal_ ? "\033[2m" : "<think>");
}

void AnswerPrinter::close_reasoning() {
  if (!in_reasoning_) return;
  in_reasoning_ = false;
  write_output(terminal_ ? "\033[0m\n\n" : "</think>\n");
  at_line_start_ = true;
}

void AnswerPrinter::finish() {
  close_reasoning();
  if (!at_line_start_) write_output("\n");
  at_line_start_ = true;
}

}  // namespace peregrine
