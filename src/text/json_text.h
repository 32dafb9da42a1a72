// JSON values that remember what a rewriting must keep (spec: encoding.md section 8).
//
// Schemas and arguments go into the prompt exactly as Python's json.dumps(ensure_ascii=False) would
// write them, so a value keeps its key order, integers keep all their digits, and integers stay
// apart from doubles. General JSON libraries lose at least one of these, and none of them reads a
// lone surrogate escape as U+FFFD, which requests may hold.
//
// Refuses: anything RFC 8259 does not allow, and nesting deeper than kMaxJsonDepth.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace peregrine {

inline constexpr int kMaxJsonDepth = 256;

struct JsonMember;

class JsonValue {
 public:
  struct Integer {
    std::string digits;  // canonical decimal text: no leading zeros, no "-0"
  };
  using Array = std::vector<JsonValue>;
  using Object = std::vector<JsonMember>;  // in order of first appearance, keys are unique

  // Defined out of line: a member, and with it the vector of members, is complete only below.
  JsonValue();  // null
  JsonValue(const JsonValue&);
  JsonValue(JsonValue&&) noexcept;
  JsonValue& operator=(const JsonValue&);
  JsonValue& operator=(JsonValue&&) noexcept;
  ~JsonValue();
  explicit JsonValue(bool value);
  explicit JsonValue(Integer value);
  explicit JsonValue(double value);
  explicit JsonValue(std::string value);
  explicit JsonValue(Array value);
  explicit JsonValue(Object value);

  bool is_null() const { return std::holds_alternative<std::monostate>(data_); }
  bool is_string() const { return std::holds_alternative<std::string>(data_); }
  bool is_array() const { return std::holds_alternative<Array>(data_); }
  bool is_object() const { return std::holds_alternative<Object>(data_); }
  bool is_number() const {
    return std::holds_alternative<Integer>(data_) || std::holds_alternative<double>(data_);
  }

  // Null when the value is of another kind.
  const bool* boolean() const { return std::get_if<bool>(&data_); }
  const Integer* integer() const { return std::get_if<Integer>(&data_); }
  const double* floating() const { return std::get_if<double>(&data_); }
  const std::string* string() const { return std::get_if<std::string>(&data_); }
  const Array* array() const { return std::get_if<Array>(&data_); }
  const Object* object() const { return std::get_if<Object>(&data_); }
  Object* object() { return std::get_if<Object>(&data_); }

  // The value as a 64-bit integer; empty for other kinds and for integers that do not fit.
  std::optional<int64_t> as_int64() const;

  // Member `key` of an object; null when this is no object or has no such key.
  const JsonValue* find(std::string_view key) const;
  // The same, and null also when the member is a JSON null.
  const JsonValue* find_set(std::string_view key) const;
  // Replaces or appends a member; this must be an object.
  void set(std::string_view key, JsonValue value);
  void erase(std::string_view key);

  // "null", "a boolean", "an integer", ...: for error sentences.
  const char* kind_name() const;

  // Python's json.dumps(value, ensure_ascii=False).
  std::string dump() const;

 private:
  std::variant<std::monostate, bool, Integer, double, std::string, Array, Object> data_;
};

struct JsonMember {
  std::string key;
  JsonValue value;
};

struct JsonParse {
  std::optional<JsonValue> value;  // empty: `problem` says why
  std::string problem;             // "expected ':' at byte 17"
};

// Parses one JSON document. Of a repeated key the last value counts, at the first one's place. In
// strings, ill-formed UTF-8 and lone surrogate escapes become U+FFFD.
JsonParse parse_json(std::string_view text);

// `text` as a JSON string with quotes; escapes only '"', '\' and control characters below U+0020.
std::string json_quote(std::string_view text);
// The same without quotes, appended; a text may be passed in pieces.
void append_json_escaped(std::string& out, std::string_view text);

}  // namespace peregrine
