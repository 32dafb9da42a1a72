// Splits the model's output into reasoning, content and tool calls while it streams
// (spec: encoding.md section 11.2).
//
// Owns: the state between pieces. Assumes: pieces are decoded text in whole characters, without the
// end token. Refuses nothing: malformed markup has a defined result. However the same output is cut
// into pieces, the joined events are the same, none of them holds a part of a recognised tag, and
// whatever can be emitted has been emitted after each piece.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/prompt.h"

namespace peregrine {

struct OutputEvent {
  enum class Kind {
    kReasoning,  // text
    kContent,    // text
    kCallBegin,  // call, id, text = the name of the function
    kArguments,  // call, text = the next characters of the arguments' JSON
    kCallEnd     // call; its arguments are complete
  };
  Kind kind;
  std::string text;
  int call = -1;   // index of the call, counted from 0
  std::string id;  // of the call
};

// Why generation stopped. After a stop string the text behind it is never passed to the parser.
enum class StopCause { kEndOfTurn, kLength, kStopString };
enum class FinishReason { kStop, kLength, kToolCalls };

class OutputParser {
 public:
  struct Options {
    OutputStart start = OutputStart::kContent;  // RenderedPrompt::start
    bool parse_tools = false;                   // ChatRequest::parse_tools()
    std::function<std::string()> make_call_id;  // needed with parse_tools; unique ids
  };
  explicit OutputParser(Options options);

  std::vector<OutputEvent> push(std::string_view piece);
  // The end of the output; call once, then only finish_reason().
  std::vector<OutputEvent> finish(StopCause cause);
  FinishReason finish_reason() const { return finish_reason_; }

  // True once the block of calls is closed: nothing that follows counts, generation may stop.
  bool calls_complete() const { return state_ == State::kDone; }

 private:
  enum class State {
    kReasoning,
    kContent,
    kBlock,      // inside the block of calls, between calls
    kName,       // of the function, up to its quote
    kNameTail,   // the rest of the opening tag of a call
    kArgs,       // inside a call, between parameters
    kKey,        // of a parameter, up to its quote
    kAttribute,  // the rest of the opening tag of a parameter
    kValue,
    kValueTag,  // the closing tag of a value, behind its marker
    kDone
  };
  enum class Tag : uint8_t {
    kThinkEnd,
    kBlockOpen,
    kInvokeOpen,
    kParameterOpen,
    kInvokeClose,
    kBlockClose,
    kCloseMarker
  };
  struct Spelling {
    std::string_view text;
    Tag tag;
  };
  struct Found {
    size_t at = 0;                  // of the tag, or of the tail that may become one
    const Spelling* tag = nullptr;  // null: no complete tag
  };
  static Found find_tag(std::string_view text, std::span<const Spelling> spellings);
  static std::span<const Spelling> text_spellings(bool parse_tools);
  static const Spelling kBlockSpellings[];
  static const Spelling kArgsSpellings[];
  static const Spelling kValueSpellings[];

  // Each consumes from pending_ and returns false when it needs more input.
  bool step();
  bool step_text();
  bool step_block();
  bool step_args();
  bool step_value();
  bool take_until(char stop, std::string& into);

  void begin_call();
  void begin_value();
  void end_value();
  void end_value_tag();
  void finish_call();
  bool in_call() const { return state_ >= State::kNameTail && state_ <= State::kValueTag; }

  void emit(OutputEvent::Kind kind, std::string_view text);
  void emit_argument_start();

  Options options_;
  State state_;
  std::string pending_;  // input not consumed yet
  std::vector<OutputEvent> events_;
  FinishReason finish_reason_ = FinishReason::kStop;

  int calls_ = 0;  // announced so far
  // the current call
  bool announced_ = false;
  bool has_arguments_ = false;  // at least one parameter has been emitted
  std::set<std::string> keys_;
  std::string stray_;  // text between parameters
  // what is being read
  std::string word_;  // name, key's attribute text or closing tag
  std::string key_;
  std::string value_;       // of a JSON parameter
  bool raw_value_ = false;  // string="true"
  bool repeated_ = false;   // the key was seen before: the value is dropped
};

// "call_" and 24 random letters and digits.
std::string random_call_id();

}  // namespace peregrine
