#include "server/output_format.h"

#include "server/api_error.h"
#include "text/call_grammar.h"
#include "text/control_tokens.h"
#include "text/json_grammar.h"

namespace peregrine {
namespace {

// The rule of the whole answer; a negative one: the answer is free.
int answer_rule(JsonGrammar& json, const ChatRequest& request, bool must_call) {
  std::vector<Tool> tools = request.tools();
  if (request.tool_choice == ToolChoice::kFunction)
    std::erase_if(tools,
                  [&](const Tool& t) { return t.declared_name != request.tool_choice_name; });
  if (must_call) return add_calls(json, tools);
  if (request.response_format == ResponseFormat::kText) return -1;
  const std::optional<JsonValue>& schema = request.messages.front().response_schema;
  const int document =
      schema ? json.rule_for(*schema, *schema, request.schema_field) : json.any_object();
  if (!request.parse_tools()) return document;
  // An answer may still be a call.
  ByteGrammar& g = json.grammar();
  const int either = g.add_rule();
  g.add(either, g.sequence().rule(document));
  g.add(either, g.sequence().rule(add_calls(json, tools)));
  return either;
}

std::string text_of(const Message& message) {
  std::string text;
  for (const ContentPart& part : message.content) text += part.text;
  return text;
}

}  // namespace

std::shared_ptr<const OutputConstraint> output_constraint(const Service& service,
                                                          const ChatRequest& request,
                                                          OutputStart start,
                                                          const std::string& forced) {
  JsonGrammar json;
  int root = -1;
  try {
    root = answer_rule(json, request, !forced.empty());
  } catch (const Error& error) {
    throw ApiError(400, error.what(), request.schema_field, "invalid_value");
  }
  if (root < 0) return nullptr;
  auto constraint = std::make_shared<OutputConstraint>();
  constraint->grammar = std::make_shared<const ByteGrammar>(json.take(root));
  constraint->tokens = service.sorted_tokens;
  constraint->end_ids = service.end_of_turn_ids;
  const auto marker = service.tokenizer.id_of(control::kDsml);
  if (marker && !request.parse_tools()) constraint->never = {*marker};
  if (!forced.empty()) {
    constraint->begun = forced;
  } else if (start == OutputStart::kReasoning) {
    constraint->free_until = service.tokenizer.id_of(control::kThinkEnd);
  } else if (request.messages.back().prefix) {
    constraint->begun = text_of(request.messages.back());
  }
  if (!can_go_on(*constraint))
    throw ApiError(400,
                   constraint->begun.empty()
                       ? "the schema allows no value at all"
                       : "the last message, which is to be continued, does not begin as "
                         "response_format demands",
                   constraint->begun.empty() ? request.schema_field : "messages", "invalid_value");
  return constraint;
}

}  // namespace peregrine
