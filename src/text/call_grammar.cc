#include "text/call_grammar.h"

#include <algorithm>

#include "peregrine/error.h"
#include "text/control_tokens.h"

namespace peregrine {
namespace {

const std::string kMarker(control::kDsml);

std::string opening(const std::string& tag) { return "<" + kMarker + " " + tag + ">"; }
std::string closing(const std::string& tag) { return "</" + kMarker + " " + tag + ">"; }

class CallGrammar {
 public:
  explicit CallGrammar(JsonGrammar& json) : json_(json), g_(json.grammar()), text_(make_text()) {}

  int calls(const std::vector<Tool>& tools) {
    const int invoke = g_.add_rule(), more = g_.add_rule(), block = g_.add_rule();
    for (const Tool& tool : tools)
      g_.add(invoke, g_.sequence()
                         .text(opening("invoke name=\"" + tool.printed_name + "\"") + "\n")
                         .rule(parameters(tool)));
    g_.add(more, g_.sequence().text(closing("calls")));
    g_.add(more, g_.sequence().rule(invoke).rule(more));
    g_.add(block, g_.sequence().text("\n\n" + opening("calls") + "\n").rule(invoke).rule(more));
    return block;
  }

 private:
  // Any text, then the end of the parameter: the first thing in it that looks like the end is it.
  int make_text() {
    const ByteSet plain = ByteSet::range(0x20, 0x7f) | ByteSet::of("\t\n\r");
    const ByteSet less = ByteSet::of("<"), slash = ByteSet::of("/");
    const ByteSet marker_lead = ByteSet::of(kMarker.substr(0, 1));
    const ByteSet leads = ByteSet::range(0xc2, 0xf4);
    const int text = g_.add_rule(), behind_less = g_.add_rule(), behind_slash = g_.add_rule();
    const int any = g_.add_character(plain.without(less));
    g_.add(text, g_.sequence().rule(any).rule(text));
    g_.add(text, g_.sequence().text("<").rule(behind_less));
    const int no_slash = g_.add_character(plain.without(less | slash));
    g_.add(behind_less, g_.sequence().rule(no_slash).rule(text));
    g_.add(behind_less, g_.sequence().text("<").rule(behind_less));
    g_.add(behind_less, g_.sequence().text("/").rule(behind_slash));
    const int no_marker = g_.add_character(plain.without(less), leads.without(marker_lead));
    g_.add(behind_slash, g_.sequence().rule(no_marker).rule(text));
    g_.add(behind_slash, g_.sequence().text("<").rule(behind_less));
    g_.add(behind_slash, g_.sequence().text(kMarker + " parameter>\n"));
    return text;
  }

  // Up to and including the end of the call.
  int parameters(const Tool& tool) {
    static const JsonValue kNoSchema;
    const JsonValue* found = tool.schema.find_set("parameters");
    const JsonValue& schema = found ? *found : kNoSchema;
    const JsonValue* properties = schema.find_set("properties");
    int rest = g_.add_rule();
    g_.add(rest, g_.sequence().text(closing("invoke") + "\n"));
    if (!properties || !properties->is_object() || properties->object()->empty()) return rest;
    const JsonValue::Object& members = *properties->object();
    for (auto member = members.rbegin(); member != members.rend(); ++member) {
      const int before = g_.add_rule();
      g_.add(before, g_.sequence().rule(parameter(*member, schema)).rule(rest));
      if (!is_required(schema, member->key)) g_.add(before, g_.sequence().rule(rest));
      rest = before;
    }
    return rest;
  }

  static bool is_required(const JsonValue& schema, const std::string& name) {
    const JsonValue* names = schema.find_set("required");
    if (!names || !names->array()) return false;
    return std::any_of(names->array()->begin(), names->array()->end(),
                       [&](const JsonValue& n) { return n.string() && *n.string() == name; });
  }

  int parameter(const JsonMember& member, const JsonValue& schema) {
    const std::string head = "parameter name=\"" + member.key + "\" string=\"";
    const int rule = g_.add_rule();
    const auto add_text = [&](int text) {
      g_.add(rule, g_.sequence().text(opening(head + "true\"")).rule(text));
    };
    const auto add_json = [&](int json) {
      g_.add(rule, g_.sequence()
                       .text(opening(head + "false\""))
                       .rule(json)
                       .text(closing("parameter") + "\n"));
    };
    const JsonValue* type = member.value.find("type");
    const JsonValue* values = member.value.find("enum");
    if (values && values->array()) {
      for (const JsonValue& value : *values->array()) {
        const int one = g_.add_rule();
        if (value.string()) {
          g_.add(one, g_.sequence().text(*value.string() + closing("parameter") + "\n"));
          add_text(one);
        } else {
          g_.add(one, g_.sequence().text(value.dump()));
          add_json(one);
        }
      }
    } else if (type && type->string() && *type->string() == "string") {
      add_text(text_);
    } else {
      try {
        add_json(json_.rule_for(member.value, schema, "parameters"));
      } catch (const Error&) {
        add_json(json_.any_value());
        add_text(text_);
      }
    }
    return rule;
  }

  JsonGrammar& json_;
  ByteGrammar& g_;
  const int text_;
};

}  // namespace

int add_calls(JsonGrammar& json, const std::vector<Tool>& tools) {
  return CallGrammar(json).calls(tools);
}

}  // namespace peregrine
