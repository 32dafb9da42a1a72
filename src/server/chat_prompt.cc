#include "server/chat_prompt.h"

#include "server/api_error.h"
#include "server/conversation.h"
#include "server/output_format.h"
#include "text/control_tokens.h"
#include "text/prompt.h"

namespace peregrine {
namespace {

std::string opening_of_call(const ChatRequest& request) {
  const std::string marker = "<" + std::string(control::kDsml);
  std::string text = "\n\n" + marker + " calls>\n" + marker + " invoke name=\"";
  if (request.tool_choice != ToolChoice::kFunction) return text;
  for (const Tool& tool : request.tools())
    if (tool.declared_name == request.tool_choice_name) return text + tool.printed_name + "\">\n";
  return text;
}

// One entry for each assistant message, null for answers that this server does not know. Empty when
// turns and messages do not correspond one to one: reminders and tasks open turns of their own.
std::vector<std::shared_ptr<const SampledTurn>> known_turns(const Service& service,
                                                            const ChatRequest& request,
                                                            ConversationKey& conversation) {
  std::vector<std::shared_ptr<const SampledTurn>> turns;
  bool corresponds = true;
  const Message* before = nullptr;
  for (const Message& message : request.messages) {
    conversation.add(message);
    corresponds &= message.role != Role::kLatestReminder && message.task.empty();
    if (message.role == Role::kAssistant) {
      // Without a user or later system message in front the answer has no header.
      const bool leading_system =
          before == &request.messages.front() && before->role == Role::kSystem;
      corresponds &= before && before->role != Role::kAssistant && !leading_system;
      const bool continued = message.prefix && &message == &request.messages.back();
      turns.push_back(continued ? nullptr : service.turns.find(conversation, message));
    }
    before = &message;
  }
  if (!corresponds) turns.clear();
  return turns;
}

}  // namespace

ChatPrompt make_chat_prompt(const Service& service, const ChatRequest& request,
                            const HttpRequest& http) {
  require_conversation(service, request, http);
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
  ConversationKey conversation(conversation_owner(http));
  if (service.options.exact_turns) {
    const ConversationKey start = conversation;
    prompt.ids =
        encode_with_turns(rendered, service.tokenizer, known_turns(service, request, conversation));
    if (learn_turns(service, request, http, start, prompt.ids)) {
      conversation = start;
      prompt.ids = encode_with_turns(rendered, service.tokenizer,
                                     known_turns(service, request, conversation));
    }
    if (!request.messages.back().prefix) prompt.conversation = conversation;
  } else {
    prompt.ids = encode_prompt(rendered, service.tokenizer);
  }
  prompt.start = rendered.start;
  prompt.parse_tools = request.parse_tools();
  const bool must_call =
      request.tool_choice == ToolChoice::kRequired || request.tool_choice == ToolChoice::kFunction;
  if (!must_call || !prompt.parse_tools) {
    prompt.constraint = output_constraint(service, request, prompt.start, {});
    return prompt;
  }
  prompt.forced = opening_of_call(request);
  prompt.constraint = output_constraint(service, request, prompt.start, prompt.forced);
  if (prompt.start == OutputStart::kReasoning) prompt.forced.insert(0, control::kThinkEnd);
  prompt.forced_ids = service.tokenizer.encode(prompt.forced, SpecialTokens::kRecognise);
  prompt.ids.insert(prompt.ids.end(), prompt.forced_ids.begin(), prompt.forced_ids.end());
  return prompt;
}

std::function<void(size_t, const GenerationEnd&)> remember_answer(Service& service,
                                                                  const ChatPrompt& prompt) {
  if (!prompt.conversation) return {};
  return [&service, key = *prompt.conversation, forced = prompt.forced_ids,
          reasoned = prompt.start == OutputStart::kReasoning,
          parse_tools = prompt.parse_tools](size_t, const GenerationEnd& end) {
    if (!end.complete_turn) return;
    SampledTurn turn{.ids = forced, .reasoned = reasoned, .reasoning = {}};
    turn.ids.insert(turn.ids.end(), end.output_ids.begin(), end.output_ids.end());
    const Message message = message_of(turn, service.tokenizer, parse_tools);
    turn.reasoning = message.reasoning;
    ConversationKey with_answer = key;
    with_answer.add(message);
    service.turns.put(with_answer, std::move(turn));
  };
}

}  // namespace peregrine
