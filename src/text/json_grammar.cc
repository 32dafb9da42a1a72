#include "text/json_grammar.h"

#include <algorithm>
#include <span>

#include "base/fail.h"

namespace peregrine {
namespace {

constexpr int kMaxDigits = 16, kMaxExponentDigits = 2, kMaxIndent = 20;

// Say nothing about the value.
constexpr std::string_view kAnnotations[] = {"title",    "description", "default",  "examples",
                                             "$schema",  "$id",         "$comment", "deprecated",
                                             "readOnly", "writeOnly",   "$defs",    "definitions"};

bool is_one_of(std::string_view word, std::span<const std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

JsonGrammar::JsonGrammar() {
  make_white_space();
  make_string();
  make_numbers();
  make_any_value();
  boolean_ = g_.add_rule();
  g_.add(boolean_, g_.sequence().text("true"));
  g_.add(boolean_, g_.sequence().text("false"));
  null_ = g_.add_rule();
  g_.add(null_, g_.sequence().text("null"));
  for (const int rule : {string_, number_, boolean_, null_, any_object_, any_array_})
    g_.add(any_value_, g_.sequence().rule(rule));
}

// Nothing, a space, or a new line with an indentation: no more, or a model could go on for ever.
void JsonGrammar::make_white_space() {
  int deeper = g_.add_rule();
  g_.add(deeper, g_.sequence());
  for (int i = 0; i < kMaxIndent; ++i) {
    const int indent = g_.add_rule();
    g_.add(indent, g_.sequence());
    g_.add(indent, g_.sequence().text(" ").rule(deeper));
    deeper = indent;
  }
  space_ = g_.add_rule();
  g_.add(space_, g_.sequence());
  g_.add(space_, g_.sequence().text(" "));
  g_.add(space_, g_.sequence().text("\n").rule(deeper));
}

// Well-formed UTF-8, and escapes without lone surrogates.
void JsonGrammar::make_string() {
  const auto range = ByteSet::range;
  const ByteSet hex = range('0', '9') | range('a', 'f') | range('A', 'F');
  const ByteSet d = ByteSet::of("dD");
  const int c = g_.add_character(range(0x20, 0x7f).without(ByteSet::of("\"\\")));
  g_.add(c, g_.sequence().text("\\").one_of(ByteSet::of("\"\\/bfnrt")));
  g_.add(c, g_.sequence().text("\\u").one_of(hex.without(d)).one_of(hex).one_of(hex).one_of(hex));
  g_.add(c, g_.sequence().text("\\u").one_of(d).one_of(range('0', '7')).one_of(hex).one_of(hex));
  g_.add(c, g_.sequence()
                .text("\\u")
                .one_of(d)
                .one_of(ByteSet::of("89abAB"))
                .one_of(hex)
                .one_of(hex)
                .text("\\u")
                .one_of(d)
                .one_of(ByteSet::of("cdefCDEF"))
                .one_of(hex)
                .one_of(hex));
  const int rest = g_.add_rule();
  g_.add(rest, g_.sequence().text("\""));
  g_.add(rest, g_.sequence().rule(c).rule(rest));
  string_ = g_.add_rule();
  g_.add(string_, g_.sequence().text("\"").rule(rest));
}

// Up to `most` digits, perhaps none.
int JsonGrammar::digits(int most) {
  int more = g_.add_rule();
  g_.add(more, g_.sequence());
  for (int i = 0; i < most; ++i) {
    const int rule = g_.add_rule();
    g_.add(rule, g_.sequence());
    g_.add(rule, g_.sequence().one_of(ByteSet::range('0', '9')).rule(more));
    more = rule;
  }
  return more;
}

void JsonGrammar::make_numbers() {
  const int magnitude = g_.add_rule();
  g_.add(magnitude, g_.sequence().text("0"));
  g_.add(magnitude, g_.sequence().one_of(ByteSet::range('1', '9')).rule(digits(kMaxDigits - 1)));
  integer_ = g_.add_rule();
  g_.add(integer_, g_.sequence().rule(magnitude));
  g_.add(integer_, g_.sequence().text("-").rule(magnitude));
  const ByteSet digit = ByteSet::range('0', '9');
  const int fraction = g_.add_rule(), exponent = g_.add_rule(), sign = g_.add_rule();
  g_.add(fraction, g_.sequence());
  g_.add(fraction, g_.sequence().text(".").one_of(digit).rule(digits(kMaxDigits - 1)));
  g_.add(sign, g_.sequence());
  g_.add(sign, g_.sequence().one_of(ByteSet::of("+-")));
  g_.add(exponent, g_.sequence());
  g_.add(exponent, g_.sequence()
                       .one_of(ByteSet::of("eE"))
                       .rule(sign)
                       .one_of(digit)
                       .rule(digits(kMaxExponentDigits - 1)));
  number_ = g_.add_rule();
  g_.add(number_, g_.sequence().rule(integer_).rule(fraction).rule(exponent));
}

void JsonGrammar::make_any_value() {
  any_value_ = g_.add_rule();
  any_array_ = array_of(any_value_, /*nesting=*/true);
  any_object_ = map_of(any_value_, /*nesting=*/true);
}

int JsonGrammar::array_of(int item, bool nesting) {
  const int rest = g_.add_rule(), first = g_.add_rule(), array = g_.add_rule(nesting);
  g_.add(rest, g_.sequence().rule(space_).text("]"));
  g_.add(rest, g_.sequence().text(",").rule(space_).rule(item).rule(rest));
  g_.add(first, g_.sequence().text("]"));
  g_.add(first, g_.sequence().rule(item).rule(rest));
  g_.add(array, g_.sequence().text("[").rule(space_).rule(first));
  return array;
}

int JsonGrammar::map_of(int value, bool nesting) {
  const int member = g_.add_rule(), rest = g_.add_rule(), first = g_.add_rule();
  const int object = g_.add_rule(nesting);
  g_.add(member, g_.sequence().rule(string_).text(":").rule(space_).rule(value));
  g_.add(rest, g_.sequence().rule(space_).text("}"));
  g_.add(rest, g_.sequence().text(",").rule(space_).rule(member).rule(rest));
  g_.add(first, g_.sequence().text("}"));
  g_.add(first, g_.sequence().rule(member).rule(rest));
  g_.add(object, g_.sequence().text("{").rule(space_).rule(first));
  return object;
}

int JsonGrammar::literal(const std::string& text) {
  const int rule = g_.add_rule();
  g_.add(rule, g_.sequence().text(text));
  return rule;
}

// ---- schemas
// -------------------------------------------------------------------------------------

void JsonGrammar::refuse(const std::string& place, const std::string& problem) const {
  fail(ErrorKind::kInvalidArgument, "{} {}", place, problem);
}

int JsonGrammar::schema_rule(const JsonValue& schema, const std::string& place) {
  if (const bool* any = schema.boolean(); any && *any) return any_value_;
  if (!schema.is_object())
    refuse(place, fmt::format("is {}, expected an object", schema.kind_name()));
  if (++depth_ > kMaxSchemaDepth)
    refuse(place, fmt::format("is nested deeper than {} levels", kMaxSchemaDepth));
  const int rule = value_rule(schema, place);
  --depth_;
  return rule;
}

// The one keyword that says what the value is, and those that belong to it.
int JsonGrammar::value_rule(const JsonValue& schema, const std::string& place) {
  const auto only = [&](std::initializer_list<std::string_view> known) {
    for (const JsonMember& member : *schema.object())
      if (!is_one_of(member.key, kAnnotations) &&
          !is_one_of(member.key, std::span(known.begin(), known.size())))
        refuse(place + "." + member.key, "is not supported, or not together with the others");
  };
  if (schema.find("$ref")) {
    only({"$ref"});
    return reference_rule(*schema.find("$ref"), place + ".$ref");
  }
  if (const JsonValue* value = schema.find("const")) {
    only({"const", "type"});
    return literal(value->dump());
  }
  if (const JsonValue* values = schema.find("enum")) {
    only({"enum", "type"});
    if (!values->array() || values->array()->empty())
      refuse(place + ".enum", "is no list of values");
    if (values->array()->size() > kMaxAlternatives)
      refuse(place + ".enum", fmt::format("holds {} values, expected at most {}",
                                          values->array()->size(), kMaxAlternatives));
    const int rule = g_.add_rule();
    for (const JsonValue& value : *values->array()) g_.add(rule, g_.sequence().text(value.dump()));
    return rule;
  }
  if (const JsonValue* schemas = schema.find("anyOf")) {
    only({"anyOf"});
    if (!schemas->array() || schemas->array()->empty())
      refuse(place + ".anyOf", "is no list of schemas");
    const int rule = g_.add_rule();
    for (size_t i = 0; i < schemas->array()->size(); ++i)
      g_.add(rule, g_.sequence().rule(
                       schema_rule((*schemas->array())[i], fmt::format("{}.anyOf[{}]", place, i))));
    return rule;
  }
  only({"type", "properties", "required", "additionalProperties", "items"});
  const JsonValue* type = schema.find("type");
  if (!type) {
    if (schema.find("properties") || schema.find("required") || schema.find("additionalProperties"))
      return object_rule(schema, place);
    return schema.find("items") ? array_rule(schema, place) : any_value_;
  }
  if (type->string()) return typed_rule(*type->string(), schema, place);
  if (!type->array() || type->array()->empty())
    refuse(place + ".type", "is no type and no list of types");
  const int rule = g_.add_rule();
  for (const JsonValue& one : *type->array())
    g_.add(rule, g_.sequence().rule(typed_rule(one.string() ? *one.string() : "", schema, place)));
  return rule;
}

int JsonGrammar::typed_rule(const std::string& type, const JsonValue& schema,
                            const std::string& place) {
  if (type == "object") return object_rule(schema, place);
  if (type == "array") return array_rule(schema, place);
  if (type == "string") return string_;
  if (type == "number") return number_;
  if (type == "integer") return integer_;
  if (type == "boolean") return boolean_;
  if (type == "null") return null_;
  refuse(place + ".type",
         fmt::format("is \"{}\", expected object, array, string, number, integer, boolean or null",
                     type.substr(0, 40)));
}

int JsonGrammar::array_rule(const JsonValue& schema, const std::string& place) {
  const JsonValue* items = schema.find("items");
  if (!items) return any_array_;
  return array_of(schema_rule(*items, place + ".items"), /*nesting=*/false);
}

// Members in the order of `properties`; those that are not required may be left out.
int JsonGrammar::object_rule(const JsonValue& schema, const std::string& place) {
  static const JsonValue::Object kNone;
  const JsonValue* properties = schema.find("properties");
  if (properties && !properties->is_object()) refuse(place + ".properties", "is no object");
  const JsonValue::Object& members = properties ? *properties->object() : kNone;
  const std::vector<bool> required = required_of(schema, members, place);
  const JsonValue* others = schema.find("additionalProperties");
  const bool none = others && others->boolean() && !*others->boolean();
  if (members.empty() && !none)
    return others ? map_of(schema_rule(*others, place + ".additionalProperties"), false)
                  : any_object_;
  if (members.size() > kMaxProperties)
    refuse(place + ".properties",
           fmt::format("holds {} members, expected at most {}", members.size(), kMaxProperties));
  // first: no member has been written yet; rest: one has.
  int first = g_.add_rule(), rest = g_.add_rule();
  g_.add(first, g_.sequence().text("}"));
  g_.add(rest, g_.sequence().rule(space_).text("}"));
  for (size_t i = members.size(); i-- > 0;) {
    const int member = g_.add_rule();
    g_.add(member,
           g_.sequence()
               .text(json_quote(members[i].key) + ":")
               .rule(space_)
               .rule(schema_rule(members[i].value, place + ".properties." + members[i].key)));
    const int next_first = first, next_rest = rest;
    first = g_.add_rule(), rest = g_.add_rule();
    g_.add(first, g_.sequence().rule(member).rule(next_rest));
    g_.add(rest, g_.sequence().text(",").rule(space_).rule(member).rule(next_rest));
    if (required[i]) continue;
    g_.add(first, g_.sequence().rule(next_first));
    g_.add(rest, g_.sequence().rule(next_rest));
  }
  const int object = g_.add_rule();
  g_.add(object, g_.sequence().text("{").rule(space_).rule(first));
  return object;
}

std::vector<bool> JsonGrammar::required_of(const JsonValue& schema,
                                           const JsonValue::Object& members,
                                           const std::string& place) const {
  std::vector<bool> required(members.size(), false);
  const JsonValue* names = schema.find("required");
  if (!names) return required;
  if (!names->array()) refuse(place + ".required", "is no list of names");
  for (const JsonValue& name : *names->array()) {
    const auto at = std::find_if(members.begin(), members.end(), [&](const JsonMember& m) {
      return name.string() && m.key == *name.string();
    });
    if (at == members.end())
      refuse(place + ".required", fmt::format("holds {}, which is not among the properties",
                                              name.dump().substr(0, 100)));
    required[static_cast<size_t>(at - members.begin())] = true;
  }
  return required;
}

int JsonGrammar::reference_rule(const JsonValue& target, const std::string& place) {
  const std::string name = target.string() ? *target.string() : target.kind_name();
  if (const auto known = references_.find(name); known != references_.end()) return known->second;
  const JsonValue* found = nullptr;
  if (name == "#") found = document_;
  for (const std::string_view folder : {"$defs", "definitions"}) {
    const std::string prefix = "#/" + std::string(folder) + "/";
    const JsonValue* holder = document_->find(folder);
    if (name.starts_with(prefix) && holder) found = holder->find(name.substr(prefix.size()));
  }
  if (!found)
    refuse(place, fmt::format("is \"{}\", expected #, or #/$defs/NAME with a NAME that is there",
                              name.substr(0, 100)));
  // Known before it is complete: a definition may hold itself.
  const int rule = g_.add_rule();
  references_[name] = rule;
  try {
    g_.add(rule, g_.sequence().rule(schema_rule(*found, name)));
  } catch (...) {
    references_.erase(name);
    throw;
  }
  return rule;
}

int JsonGrammar::rule_for(const JsonValue& schema, const JsonValue& document,
                          const std::string& place) {
  if (document_ != &document) references_.clear();
  document_ = &document;
  depth_ = 0;
  return schema_rule(schema, place);
}

ByteGrammar JsonGrammar::take(int root) {
  g_.root = root;
  g_.prune();
  return std::move(g_);
}

}  // namespace peregrine
