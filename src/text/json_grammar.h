// JSON and what JSON Schema says about it, as grammars.
//
// Of JSON Schema: type, properties, required, additionalProperties, items, enum, const, anyOf, and
// $ref to #/$defs or #/definitions; annotations are passed over, every other keyword is refused by
// name. What a grammar matches is valid against the schema, but not the other way round: members
// come in the order of the schema, members that it does not name come only where it names none,
// white space is sparse, and numbers have at most 16 digits on either side of the point.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "text/byte_grammar.h"
#include "text/json_text.h"

namespace peregrine {

// Rules of JSON values, for a grammar that is or holds JSON.
class JsonGrammar {
 public:
  JsonGrammar();

  ByteGrammar& grammar() { return g_; }
  int any_object() const { return any_object_; }
  int any_value() const { return any_value_; }
  // The rule of a schema whose $refs are looked up in `document`; no other document may have been
  // at its address before. Throws Error(kInvalidArgument) naming what is not understood, its place
  // beginning with `place`; the grammar stays of use.
  int rule_for(const JsonValue& schema, const JsonValue& document, const std::string& place);
  ByteGrammar take(int root);

 private:
  static constexpr int kMaxSchemaDepth = 64;
  static constexpr size_t kMaxProperties = 1000, kMaxAlternatives = 10000;  // of an enum

  void make_white_space();
  void make_string();
  void make_numbers();
  void make_any_value();
  int digits(int most);
  int literal(const std::string& text);
  int array_of(int item, bool nesting);
  int map_of(int value, bool nesting);

  [[noreturn]] void refuse(const std::string& place, const std::string& problem) const;
  int schema_rule(const JsonValue& schema, const std::string& place);
  int value_rule(const JsonValue& schema, const std::string& place);
  int typed_rule(const std::string& type, const JsonValue& schema, const std::string& place);
  int array_rule(const JsonValue& schema, const std::string& place);
  int object_rule(const JsonValue& schema, const std::string& place);
  int reference_rule(const JsonValue& target, const std::string& place);
  std::vector<bool> required_of(const JsonValue& schema, const JsonValue::Object& members,
                                const std::string& place) const;

  ByteGrammar g_;
  int space_ = 0, string_ = 0, integer_ = 0, number_ = 0, boolean_ = 0, null_ = 0;
  int any_value_ = 0, any_array_ = 0, any_object_ = 0;
  const JsonValue* document_ = nullptr;
  std::map<std::string, int> references_;  // rules of $ref targets
  int depth_ = 0;
};

}  // namespace peregrine
