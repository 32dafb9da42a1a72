#include "server/chat_prompt.h"

#include "server/api_error.h"
#include "text/control_tokens.h"
#include "text/prompt.h"

namespace peregrine {
namespace {

void append(std::vector<int32_t>& ids, const std::vector<int32_t>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
}

std::string opening_of_call(const ChatRequest& request) {
  const std::string marker = "<" + std::string(control::kDsml);
  std::string text = "\n\n" + marker + " calls>\n" + marker + " invoke name=\"";
  if (request.tool_choice != ToolChoice::kFunction) return text;
  for (const Tool& tool : request.tools())
    if (tool.declared_name == request.tool_choice_name) return text + tool.printed_name + "\">\n";
  return text;
}

}  // namespace

ChatPrompt make_chat_prompt(const Service& service, const ChatRequest& request) {
  const RenderedPrompt rendered = render_prompt(request);
  if (!rendered.images.empty())
    throw ApiError(400, "messages holds images, but this server reads text only", "messages",
                   "unsupported_content");
  if (!rendered.opens_turn)
    throw ApiError(400,
                   "messages ends without a turn for the model, expected a user or tool message "
                   "last, or an assistant message with prefix: true",
                   "messages", "invalid_value");
  ChatPrompt prompt;
  prompt.ids = encode_prompt(rendered, service.tokenizer);
  prompt.start = rendered.start;
  prompt.parse_tools = request.parse_tools();
  const bool must_call =
      request.tool_choice == ToolChoice::kRequired || request.tool_choice == ToolChoice::kFunction;
  if (!must_call || !prompt.parse_tools) return prompt;
  prompt.forced = opening_of_call(request);
  if (prompt.start == OutputStart::kReasoning) prompt.forced.insert(0, control::kThinkEnd);
  append(prompt.ids, service.tokenizer.encode(prompt.forced, SpecialTokens::kRecognise));
  return prompt;
}

}  // namespace peregrine
