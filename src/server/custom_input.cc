#include "server/custom_input.h"

#include "text/json_text.h"

namespace peregrine {
namespace {

constexpr size_t kNone = std::string_view::npos;
constexpr std::string_view kHead = R"({"input":")";  // with white space anywhere before a mark

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// Bytes of the escape sequence at the start of `text`; 0: not all of it is there. The escapes of
// a surrogate pair are one sequence.
size_t escape_length(std::string_view text) {
  if (text.size() < 2) return 0;
  if (text[1] != 'u') return 2;
  if (text.size() < 6) return 0;
  const char second = text[3];
  const bool high_surrogate =
      (text[2] == 'd' || text[2] == 'D') && std::string_view("89abAB").find(second) != kNone;
  if (!high_surrogate) return 6;
  const std::string_view rest = text.substr(6);
  if (rest.size() < 6) return std::string_view("\\u").starts_with(rest.substr(0, 2)) ? 0 : 6;
  return rest.starts_with("\\u") ? 12 : 6;
}

}  // namespace

std::string CustomInput::push(std::string_view json) {
  std::string out;
  held_ += json;
  if (state_ == State::kHead) take_head();
  if (state_ == State::kString) take_string(out);
  return out;
}

void CustomInput::take_head() {
  size_t matched = 0;
  for (size_t i = 0; i < held_.size(); ++i) {
    const char c = held_[i];
    const bool in_key = matched >= 2 && matched < 8;
    if (is_space(c) && !in_key) continue;
    if (c != kHead[matched]) return;  // another form: finish() decides
    if (++matched < kHead.size()) continue;
    held_.erase(0, i + 1);
    state_ = State::kString;
    return;
  }
}

void CustomInput::take_string(std::string& out) {
  size_t at = 0;
  while (at < held_.size()) {
    if (held_[at] == '"') {
      state_ = State::kDone;
      held_.clear();
      return;
    }
    if (held_[at] != '\\') {
      out += held_[at++];
      continue;
    }
    const size_t length = escape_length(std::string_view(held_).substr(at));
    if (length == 0) break;
    const JsonParse parsed = parse_json('"' + held_.substr(at, length) + '"');
    if (parsed.value && parsed.value->string()) out += *parsed.value->string();
    at += length;
  }
  held_.erase(0, at);
}

std::string CustomInput::finish() {
  if (state_ != State::kHead) return {};
  const JsonParse parsed = parse_json(held_);
  const JsonValue* input = parsed.value ? parsed.value->find_set("input") : nullptr;
  return input && input->string() ? *input->string() : held_;
}

}  // namespace peregrine
