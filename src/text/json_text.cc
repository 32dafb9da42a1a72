#include "text/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>
#include <unordered_map>

#include "text/unicode.h"

namespace peregrine {
namespace {

// Recursive descent; kMaxJsonDepth bounds the recursion.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  JsonParse parse() {
    JsonValue value;
    skip_space();
    if (!parse_value(value, 0)) return {std::nullopt, problem_};
    skip_space();
    if (at_ != text_.size()) {
      problem("unexpected text behind the value");
      return {std::nullopt, problem_};
    }
    return {std::move(value), {}};
  }

 private:
  bool problem(std::string_view what) {
    problem_ = fmt::format("{} at byte {}", what, at_);
    return false;
  }
  bool done() const { return at_ >= text_.size(); }
  char peek() const { return text_[at_]; }
  bool take(char c) {
    if (done() || peek() != c) return false;
    ++at_;
    return true;
  }
  void skip_space() {
    while (!done() && (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r')) ++at_;
  }
  bool literal(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return problem("unknown literal");
    at_ += word.size();
    return true;
  }

  bool parse_value(JsonValue& out, int depth) {
    if (done()) return problem("the text ends where a value is expected");
    switch (peek()) {
      case '{':
        return parse_object(out, depth + 1);
      case '[':
        return parse_array(out, depth + 1);
      case '"': {
        std::string text;
        if (!parse_string(text)) return false;
        out = JsonValue(std::move(text));
        return true;
      }
      case 't':
        out = JsonValue(true);
        return literal("true");
      case 'f':
        out = JsonValue(false);
        return literal("false");
      case 'n':
        out = JsonValue();
        return literal("null");
      default:
        return parse_number(out);
    }
  }

  bool parse_array(JsonValue& out, int depth) {
    if (depth > kMaxJsonDepth) return problem("nesting is too deep");
    ++at_;
    JsonValue::Array items;
    skip_space();
    if (!take(']')) {
      do {
        skip_space();
        if (!parse_value(items.emplace_back(), depth)) return false;
        skip_space();
      } while (take(','));
      if (!take(']')) return problem("expected ',' or ']'");
    }
    out = JsonValue(std::move(items));
    return true;
  }

  bool parse_object(JsonValue& out, int depth) {
    if (depth > kMaxJsonDepth) return problem("nesting is too deep");
    ++at_;
    JsonValue::Object members;
    skip_space();
    if (!take('}')) {
      do {
        skip_space();
        if (done() || peek() != '"') return problem("expected a member name");
        JsonMember& member = members.emplace_back();
        if (!parse_string(member.key)) return false;
        skip_space();
        if (!take(':')) return problem("expected ':'");
        skip_space();
        if (!parse_value(member.value, depth)) return false;
        skip_space();
      } while (take(','));
      if (!take('}')) return problem("expected ',' or '}'");
    }
    join_repeated(members);
    out = JsonValue(std::move(members));
    return true;
  }

  // Of a repeated key the last value counts, at the first one's place.
  static void join_repeated(JsonValue::Object& members) {
    std::vector<size_t> repeated;
    if (members.size() <= 8) {  // no table for the usual small object
      for (size_t i = 1; i < members.size(); ++i) {
        const auto same = [&](const JsonMember& m) { return m.key == members[i].key; };
        const auto first = std::find_if(members.begin(), members.begin() + i, same);
        if (first == members.begin() + i) continue;
        first->value = std::move(members[i].value);
        repeated.push_back(i);
      }
    } else {
      std::unordered_map<std::string_view, size_t> places;
      places.reserve(members.size());
      for (size_t i = 0; i < members.size(); ++i) {
        const auto [first, added] = places.emplace(members[i].key, i);
        if (added) continue;
        members[first->second].value = std::move(members[i].value);
        repeated.push_back(i);
      }
    }
    if (repeated.empty()) return;
    size_t next = 0, kept = 0;
    for (size_t i = 0; i < members.size(); ++i) {
      if (next < repeated.size() && repeated[next] == i) {
        ++next;
      } else if (kept++ != i) {
        members[kept - 1] = std::move(members[i]);
      }
    }
    members.resize(kept);
  }

  bool parse_string(std::string& out) {
    ++at_;
    bool ascii = true;
    for (;;) {
      const size_t start = at_;
      while (!done() && peek() != '"' && peek() != '\\' && static_cast<uint8_t>(peek()) >= 0x20) {
        ascii &= static_cast<uint8_t>(peek()) < 0x80;
        ++at_;
      }
      out.append(text_.substr(start, at_ - start));
      if (done()) return problem("a string is not closed");
      if (take('"')) break;
      if (peek() != '\\') return problem("a control character in a string must be escaped");
      ++at_;
      if (!parse_escape(out)) return false;
    }
    if (!ascii && !is_valid_utf8(out)) out = repair_utf8(out);
    return true;
  }

  bool parse_escape(std::string& out) {
    static constexpr std::string_view kNames = "\"\\/bfnrt";
    static constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
    if (done()) return problem("a string is not closed");
    const char c = text_[at_++];
    if (const size_t i = kNames.find(c); i != kNames.npos) {
      out.push_back(kValues[i]);
      return true;
    }
    uint32_t unit = 0;
    if (c != 'u' || !parse_hex(unit)) return problem("unknown escape in a string");
    char32_t code_point = unit;
    if (unit >= 0xD800 && unit < 0xE000) {
      code_point = kReplacementCharacter;
      if (unit < 0xDC00 && text_.substr(at_, 2) == "\\u") {
        const size_t back = at_;
        uint32_t low = 0;
        at_ += 2;
        if (!parse_hex(low)) return problem("unknown escape in a string");
        if (low >= 0xDC00 && low < 0xE000) {
          code_point = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
        } else {
          at_ = back;
        }
      }
    }
    append_utf8(out, code_point);
    return true;
  }

  bool parse_hex(uint32_t& out) {
    const std::string_view digits = text_.substr(at_, 4);
    const auto end = digits.data() + digits.size();
    if (digits.size() < 4 || std::from_chars(digits.data(), end, out, 16).ptr != end) return false;
    at_ += 4;
    return true;
  }

  size_t skip_digits() {
    const size_t start = at_;
    while (!done() && peek() >= '0' && peek() <= '9') ++at_;
    return at_ - start;
  }

  bool parse_number(JsonValue& out) {
    const size_t start = at_;
    take('-');
    const size_t first = at_;
    const size_t whole = skip_digits();
    if (whole == 0) return problem("unexpected character");
    if (whole > 1 && text_[first] == '0') return problem("a number has a leading zero");
    bool integer = true;
    if (take('.')) {
      integer = false;
      if (skip_digits() == 0) return problem("a number lacks digits");
    }
    if (!done() && (peek() == 'e' || peek() == 'E')) {
      integer = false;
      ++at_;
      if (!take('+')) take('-');
      if (skip_digits() == 0) return problem("a number lacks digits");
    }
    const std::string_view number = text_.substr(start, at_ - start);
    if (integer) {
      out = JsonValue(JsonValue::Integer{number == "-0" ? "0" : std::string(number)});
    } else {
      out = JsonValue(to_double(number));
    }
    return true;
  }

  static double to_double(std::string_view number) {
    double value = 0;
    const auto [ptr, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error == std::errc()) return value;
    // Out of range: from_chars does not say on which side. The decimal exponent of the first digit
    // that is not zero does.
    const bool negative = number[0] == '-';
    const size_t e = number.find_first_of("eE");
    const std::string_view mantissa = number.substr(0, e);
    int64_t exponent = 0;
    if (e != number.npos) {
      const size_t digits = e + (number[e + 1] == '+' ? 2 : 1);
      const auto parsed =
          std::from_chars(number.data() + digits, number.data() + number.size(), exponent);
      if (parsed.ec != std::errc()) exponent = number[e + 1] == '-' ? -1'000'000 : 1'000'000;
    }
    const auto point = static_cast<int64_t>(std::min(mantissa.find('.'), mantissa.size()));
    const auto leading = static_cast<int64_t>(mantissa.find_first_of("123456789"));
    const double magnitude =
        exponent + point - leading > 0 ? std::numeric_limits<double>::infinity() : 0.0;
    return negative ? -magnitude : magnitude;
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string problem_;
};

// Python's repr of a double: the shortest digits that read back as the same value, fixed notation
// for decimal exponents -4..15, a fraction always shown.
void append_double(std::string& out, double value) {
  if (std::isinf(value)) {
    out += value < 0 ? "-Infinity" : "Infinity";
    return;
  }
  if (std::isnan(value)) {
    out += "NaN";
    return;
  }
  char buffer[40];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, end - buffer);
  const size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(buffer + e + (text[e + 1] == '+' ? 2 : 1), end, exponent);
  if (exponent < -4 || exponent > 15) {
    out += text;  // to_chars also writes the sign and at least two exponent digits
    return;
  }
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (c == '-') {
      out += '-';
    } else if (c != '.') {
      digits += c;
    }
  }
  if (exponent < 0) {
    out += "0." + std::string(-exponent - 1, '0') + digits;
    return;
  }
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) digits.append(whole + 1 - digits.size(), '0');
  out += digits.substr(0, whole) + '.' + digits.substr(whole);
}

void append_value(std::string& out, const JsonValue& value) {
  if (const auto* boolean = value.boolean()) {
    out += *boolean ? "true" : "false";
  } else if (const auto* integer = value.integer()) {
    out += integer->digits;
  } else if (const auto* number = value.floating()) {
    append_double(out, *number);
  } else if (const auto* text = value.string()) {
    out += json_quote(*text);
  } else if (const auto* array = value.array()) {
    out += '[';
    for (const JsonValue& item : *array) {
      if (&item != array->data()) out += ", ";
      append_value(out, item);
    }
    out += ']';
  } else if (const auto* object = value.object()) {
    out += '{';
    for (const JsonMember& member : *object) {
      if (&member != object->data()) out += ", ";
      out += json_quote(member.key) + ": ";
      append_value(out, member.value);
    }
    out += '}';
  } else {
    out += "null";
  }
}

}  // namespace

JsonValue::JsonValue() = default;
JsonValue::JsonValue(const JsonValue&) = default;
JsonValue::JsonValue(JsonValue&&) noexcept = default;
JsonValue& JsonValue::operator=(const JsonValue&) = default;
JsonValue& JsonValue::operator=(JsonValue&&) noexcept = default;
JsonValue::~JsonValue() = default;
JsonValue::JsonValue(bool value) : data_(value) {}
JsonValue::JsonValue(Integer value) : data_(std::move(value)) {}
JsonValue::JsonValue(double value) : data_(value) {}
JsonValue::JsonValue(std::string value) : data_(std::move(value)) {}
JsonValue::JsonValue(Array value) : data_(std::move(value)) {}
JsonValue::JsonValue(Object value) : data_(std::move(value)) {}

std::optional<int64_t> JsonValue::as_int64() const {
  const Integer* number = integer();
  if (!number) return std::nullopt;
  int64_t value = 0;
  const auto end = number->digits.data() + number->digits.size();
  const auto parsed = std::from_chars(number->digits.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return value;
}

const JsonValue* JsonValue::find(std::string_view key) const {
  if (const Object* members = object()) {
    for (const JsonMember& member : *members) {
      if (member.key == key) return &member.value;
    }
  }
  return nullptr;
}

const JsonValue* JsonValue::find_set(std::string_view key) const {
  const JsonValue* value = find(key);
  return value && !value->is_null() ? value : nullptr;
}

void JsonValue::set(std::string_view key, JsonValue value) {
  Object& members = std::get<Object>(data_);
  for (JsonMember& member : members) {
    if (member.key == key) {
      member.value = std::move(value);
      return;
    }
  }
  members.push_back({std::string(key), std::move(value)});
}

void JsonValue::erase(std::string_view key) {
  std::erase_if(std::get<Object>(data_), [&](const JsonMember& m) { return m.key == key; });
}

const char* JsonValue::kind_name() const {
  static constexpr const char* kNames[] = {"null",     "a boolean", "an integer", "a number",
                                           "a string", "an array",  "an object"};
  return kNames[data_.index()];
}

std::string JsonValue::dump() const {
  std::string out;
  append_value(out, *this);
  return out;
}

JsonParse parse_json(std::string_view text) { return Parser(text).parse(); }

void append_json_escaped(std::string& out, std::string_view text) {
  static constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t";
  static constexpr std::string_view kNames = "\"\\bfnrt";
  for (const char c : text) {
    if (const size_t i = kEscaped.find(c); i != kEscaped.npos) {
      out += '\\';
      out += kNames[i];
    } else if (static_cast<uint8_t>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
}

std::string json_quote(std::string_view text) {
  std::string out = "\"";
  append_json_escaped(out, text);
  out += '"';
  return out;
}

}  // namespace peregrine
