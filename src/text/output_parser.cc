#include "text/output_parser.h"

#include <algorithm>
#include <random>
#include <utility>

#include "base/fail.h"
#include "text/json_text.h"

namespace peregrine {
namespace {

constexpr std::string_view kOpenMarker = "<｜DSML｜";
constexpr std::string_view kCloseMarkerText = "</｜DSML｜";
constexpr std::string_view kSpace = " \t\r\n\f\v";

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpace);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

}  // namespace

// Every tag is accepted with and without a space behind its marker. No spelling holds a second '<',
// so a tail that may become a tag is unique.
std::span<const OutputParser::Spelling> OutputParser::text_spellings(bool parse_tools) {
  static constexpr Spelling kAll[] = {{"</think>", Tag::kThinkEnd},
                                      {"<｜DSML｜ calls>", Tag::kBlockOpen},
                                      {"<｜DSML｜calls>", Tag::kBlockOpen},
                                      {"<｜DSML｜ tool_calls>", Tag::kBlockOpen},
                                      {"<｜DSML｜tool_calls>", Tag::kBlockOpen},
                                      {"<｜DSML｜ invoke name=\"", Tag::kInvokeOpen},
                                      {"<｜DSML｜invoke name=\"", Tag::kInvokeOpen}};
  return std::span(kAll).first(parse_tools ? std::size(kAll) : 1);
}

const OutputParser::Spelling OutputParser::kBlockSpellings[] = {
    {"<｜DSML｜ invoke name=\"", Tag::kInvokeOpen}, {"<｜DSML｜invoke name=\"", Tag::kInvokeOpen},
    {"</｜DSML｜ calls>", Tag::kBlockClose},        {"</｜DSML｜calls>", Tag::kBlockClose},
    {"</｜DSML｜ tool_calls>", Tag::kBlockClose},   {"</｜DSML｜tool_calls>", Tag::kBlockClose}};

const OutputParser::Spelling OutputParser::kArgsSpellings[] = {
    {"<｜DSML｜ parameter name=\"", Tag::kParameterOpen},
    {"<｜DSML｜parameter name=\"", Tag::kParameterOpen},
    {"</｜DSML｜ invoke>", Tag::kInvokeClose},
    {"</｜DSML｜invoke>", Tag::kInvokeClose},
    {"</｜DSML｜ calls>", Tag::kBlockClose},
    {"</｜DSML｜calls>", Tag::kBlockClose},
    {"</｜DSML｜ tool_calls>", Tag::kBlockClose},
    {"</｜DSML｜tool_calls>", Tag::kBlockClose},
    {"<｜DSML｜ invoke name=\"", Tag::kInvokeOpen},
    {"<｜DSML｜invoke name=\"", Tag::kInvokeOpen}};

const OutputParser::Spelling OutputParser::kValueSpellings[] = {
    {kCloseMarkerText, Tag::kCloseMarker}};

OutputParser::Found OutputParser::find_tag(std::string_view text,
                                           std::span<const Spelling> spellings) {
  for (size_t at = text.find('<'); at != text.npos; at = text.find('<', at + 1)) {
    const std::string_view rest = text.substr(at);
    for (const Spelling& spelling : spellings) {
      if (rest.starts_with(spelling.text)) return {at, &spelling};
      if (spelling.text.starts_with(rest)) return {at, nullptr};
    }
  }
  return {text.size(), nullptr};
}

OutputParser::OutputParser(Options options)
    : options_(std::move(options)),
      state_(options_.start == OutputStart::kReasoning ? State::kReasoning : State::kContent) {
  if (options_.parse_tools && !options_.make_call_id) {
    fail(ErrorKind::kInternal, "an output parser with tools needs a source of call ids");
  }
}

std::vector<OutputEvent> OutputParser::push(std::string_view piece) {
  pending_ += piece;
  while (step()) {
  }
  return std::exchange(events_, {});
}

bool OutputParser::step() {
  switch (state_) {
    case State::kReasoning:
    case State::kContent:
      return step_text();
    case State::kBlock:
      return step_block();
    case State::kName:
      if (!take_until('"', word_)) return false;
      begin_call();
      return true;
    case State::kNameTail:
      if (!take_until('>', word_)) return false;
      state_ = State::kArgs;
      return true;
    case State::kArgs:
      return step_args();
    case State::kKey:
      if (!take_until('"', key_)) return false;
      word_.clear();
      state_ = State::kAttribute;
      return true;
    case State::kAttribute:
      if (!take_until('>', word_)) return false;
      begin_value();
      return true;
    case State::kValue:
      return step_value();
    case State::kValueTag:
      if (!take_until('>', word_)) return false;
      end_value_tag();
      return true;
    case State::kDone:
      pending_.clear();
      return false;
  }
  return false;
}

// Moves text up to `stop` into `into` and drops `stop`; true when it was there.
bool OutputParser::take_until(char stop, std::string& into) {
  const size_t at = pending_.find(stop);
  into.append(pending_, 0, at);
  pending_.erase(0, at == pending_.npos ? at : at + 1);
  return at != std::string::npos;
}

bool OutputParser::step_text() {
  const Found found = find_tag(pending_, text_spellings(options_.parse_tools));
  const std::string_view text = std::string_view(pending_).substr(0, found.at);
  // Newlines in front of an opener belong to it; in front of nothing yet they may turn out to.
  size_t end = text.size();
  const bool opener = found.tag && found.tag->tag != Tag::kThinkEnd;
  if (opener || (!found.tag && options_.parse_tools)) {
    for (int i = 0; i < 2 && end > 0 && text[end - 1] == '\n'; ++i) --end;
  }
  emit(state_ == State::kReasoning ? OutputEvent::Kind::kReasoning : OutputEvent::Kind::kContent,
       text.substr(0, end));
  if (!found.tag) {
    pending_.erase(0, end);
    return false;
  }
  pending_.erase(0, found.at + found.tag->text.size());
  word_.clear();
  state_ = found.tag->tag == Tag::kThinkEnd    ? State::kContent
           : found.tag->tag == Tag::kBlockOpen ? State::kBlock
                                               : State::kName;
  return true;
}

bool OutputParser::step_block() {
  const Found found = find_tag(pending_, kBlockSpellings);
  pending_.erase(0, found.at + (found.tag ? found.tag->text.size() : 0));
  if (!found.tag) return false;
  word_.clear();
  state_ = found.tag->tag == Tag::kInvokeOpen ? State::kName : State::kDone;
  return true;
}

void OutputParser::begin_call() {
  announced_ = !word_.empty();
  has_arguments_ = false;
  keys_.clear();
  stray_.clear();
  if (announced_) {
    events_.push_back({OutputEvent::Kind::kCallBegin, word_, calls_++, options_.make_call_id()});
  }
  word_.clear();
  state_ = State::kNameTail;
}

bool OutputParser::step_args() {
  const Found found = find_tag(pending_, kArgsSpellings);
  stray_.append(pending_, 0, found.at);
  pending_.erase(0, found.at + (found.tag ? found.tag->text.size() : 0));
  if (!found.tag) return false;
  word_.clear();
  key_.clear();
  if (found.tag->tag == Tag::kParameterOpen) {
    state_ = State::kKey;
    return true;
  }
  finish_call();
  state_ = found.tag->tag == Tag::kInvokeClose  ? State::kBlock
           : found.tag->tag == Tag::kInvokeOpen ? State::kName
                                                : State::kDone;
  return true;
}

void OutputParser::begin_value() {
  raw_value_ = trim(word_) == "string=\"true\"";
  repeated_ = !keys_.insert(key_).second;
  value_.clear();
  state_ = State::kValue;
  if (raw_value_ && !repeated_) {
    emit_argument_start();
    emit(OutputEvent::Kind::kArguments, "\"");
  }
}

bool OutputParser::step_value() {
  const Found found = find_tag(pending_, kValueSpellings);
  if (!raw_value_) {
    value_.append(pending_, 0, found.at);
  } else if (!repeated_) {
    std::string escaped;
    append_json_escaped(escaped, std::string_view(pending_).substr(0, found.at));
    emit(OutputEvent::Kind::kArguments, escaped);
  }
  pending_.erase(0, found.at + (found.tag ? found.tag->text.size() : 0));
  if (!found.tag) return false;
  end_value();
  word_.clear();
  state_ = State::kValueTag;
  return true;
}

void OutputParser::end_value() {
  if (repeated_) return;
  if (raw_value_) {
    emit(OutputEvent::Kind::kArguments, "\"");
  } else {
    emit_argument_start();
    emit(OutputEvent::Kind::kArguments, parse_json(value_).value ? value_ : json_quote(value_));
  }
}

void OutputParser::end_value_tag() {
  const std::string_view word = trim(word_);
  const bool closes_block = word == "calls" || word == "tool_calls";
  if (word != "invoke" && !closes_block) {
    state_ = State::kArgs;
    return;
  }
  finish_call();
  state_ = closes_block ? State::kDone : State::kBlock;
}

void OutputParser::finish_call() {
  if (has_arguments_) {
    emit(OutputEvent::Kind::kArguments, "}");
  } else {
    // Some grammars put one JSON object inside the call instead of parameters.
    const std::string_view stray = trim(stray_);
    const JsonParse parsed = parse_json(stray);
    emit(OutputEvent::Kind::kArguments,
         parsed.value && parsed.value->is_object() ? stray : std::string_view("{}"));
  }
  if (announced_) events_.push_back({OutputEvent::Kind::kCallEnd, {}, calls_ - 1, {}});
}

std::vector<OutputEvent> OutputParser::finish(StopCause cause) {
  if (state_ == State::kReasoning || state_ == State::kContent) {
    // An opener that was cut off is not shown.
    const std::string_view held = std::string_view(pending_).substr(
        std::min(pending_.find_first_not_of('\n'), pending_.size()));
    if (!held.starts_with(kOpenMarker)) {
      emit(
          state_ == State::kReasoning ? OutputEvent::Kind::kReasoning : OutputEvent::Kind::kContent,
          pending_);
    }
  } else if (in_call() && cause != StopCause::kLength) {
    if (state_ == State::kValue) {
      if (!raw_value_) {
        value_ += pending_;
      } else if (!repeated_) {
        std::string escaped;
        append_json_escaped(escaped, pending_);
        emit(OutputEvent::Kind::kArguments, escaped);
      }
      end_value();
    } else if (state_ == State::kArgs && !pending_.starts_with(kOpenMarker) &&
               !pending_.starts_with(kCloseMarkerText)) {
      stray_ += pending_;
    }
    finish_call();
  }
  pending_.clear();
  if (state_ == State::kDone && calls_ > 0) {
    finish_reason_ = FinishReason::kToolCalls;
  } else if (cause != StopCause::kEndOfTurn) {
    finish_reason_ = cause == StopCause::kLength ? FinishReason::kLength : FinishReason::kStop;
  } else {
    finish_reason_ = calls_ > 0 ? FinishReason::kToolCalls : FinishReason::kStop;
  }
  return std::exchange(events_, {});
}

// Neighbouring texts of one kind become one event.
void OutputParser::emit(OutputEvent::Kind kind, std::string_view text) {
  const bool of_call = kind == OutputEvent::Kind::kArguments;
  if (text.empty() || (of_call && !announced_)) return;
  if (!events_.empty() && events_.back().kind == kind) {
    events_.back().text += text;
  } else {
    events_.push_back({kind, std::string(text), of_call ? calls_ - 1 : -1, {}});
  }
}

void OutputParser::emit_argument_start() {
  emit(OutputEvent::Kind::kArguments, has_arguments_ ? ", " : "{");
  emit(OutputEvent::Kind::kArguments, json_quote(key_) + ": ");
  has_arguments_ = true;
}

std::string random_call_id() {
  static constexpr std::string_view kLetters =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::random_device device;
  std::uniform_int_distribution<size_t> letter(0, kLetters.size() - 1);
  std::string id = "call_";
  for (int i = 0; i < 24; ++i) id += kLetters[letter(device)];
  return id;
}

}  // namespace peregrine
