#include "server/conversation.h"

#include <algorithm>
#include <utility>

#include "kvshare/sharing.h"
#include "server/api_error.h"
#include "text/control_tokens.h"
#include "text/json_text.h"

namespace peregrine {
namespace {

constexpr const char* kField = "prompt_cache_key";

// The model's turns in a sequence of tokens: what lies between an assistant's header with its mode
// switch and the end of the turn.
std::vector<SampledTurn> turns_of(const std::vector<int32_t>& ids, const Tokenizer& tokenizer) {
  const auto header = tokenizer.id_of(control::kAssistant);
  const auto think = tokenizer.id_of(control::kThink);
  const auto eos = tokenizer.id_of(control::kEos);
  std::vector<SampledTurn> turns;
  if (!header || !eos) return turns;
  auto at = ids.begin();
  while ((at = std::find(at, ids.end(), *header)) != ids.end()) {
    if (++at == ids.end()) break;
    const bool reasoned = think && *at == *think;
    const auto end = std::find(++at, ids.end(), *eos);
    turns.push_back({.ids = {at, end}, .reasoned = reasoned, .reasoning = {}});
    at = end;
  }
  return turns;
}

}  // namespace

std::string conversation_owner(const HttpRequest& request) {
  std::string owner;
  for (const char* name : {"authorization", "x-api-key"})
    if (const std::string* value = request.header(name)) owner += *value + "\n";
  return owner;
}

bool may_name_conversation(const Service& service, const HttpRequest& request) {
  return conversation_of(service, request) || request.body.find(kField) != std::string::npos;
}

void name_conversation(const Service& service, Exchange& exchange) {
  const HttpRequest& request = exchange.request();
  if (conversation_of(service, request) || request.body.find(kField) == std::string::npos) return;
  const JsonParse parsed = parse_json(request.body);
  const JsonValue* name = parsed.value ? parsed.value->find(kField) : nullptr;
  if (name != nullptr && name->string() != nullptr)
    exchange.add_header(service.options.conversation_header, *name->string());
}

std::optional<std::string> conversation_of(const Service& service, const HttpRequest& request) {
  const std::string* name = request.header(service.options.conversation_header);
  if (!name || name->empty()) return std::nullopt;
  return conversation_key(conversation_owner(request) + "\n" + *name);
}

void require_conversation(const Service& service, const ChatRequest& chat,
                          const HttpRequest& request) {
  if (!service.options.strict_conversations || conversation_of(service, request)) return;
  if (std::any_of(chat.messages.begin(), chat.messages.end(),
                  [](const Message& m) { return m.role == Role::kAssistant; }))
    throw ApiError(400,
                   "a conversation with earlier answers has to be named, expected its id in the "
                   "header " +
                       service.options.conversation_header + " or in " + kField,
                   service.options.conversation_header, "conversation_required");
}

bool learn_turns(const Service& service, const ChatRequest& chat, const HttpRequest& request,
                 const ConversationKey& start, const std::vector<int32_t>& ids) {
  const auto key = service.sharing ? conversation_of(service, request) : std::nullopt;
  const bool continues = std::any_of(chat.messages.begin(), chat.messages.end(),
                                     [](const Message& m) { return m.role == Role::kAssistant; });
  if (!key || !continues) return false;
  const std::vector<int32_t> known = service.sharing->known_tokens(*key, ids);
  if (known.empty() ||
      (known.size() <= ids.size() && std::equal(known.begin(), known.end(), ids.begin())))
    return false;
  std::vector<SampledTurn> turns = turns_of(known, service.tokenizer);
  ConversationKey conversation = start;
  size_t turn = 0;
  bool learned = false;
  for (const Message& message : chat.messages) {
    ConversationKey with_known = conversation;
    conversation.add(message);
    if (message.role != Role::kAssistant || turn >= turns.size()) continue;
    SampledTurn& candidate = turns[turn++];
    const Message said = message_of(candidate, service.tokenizer, chat.parse_tools());
    with_known.add(said);
    if (with_known.bytes() != conversation.bytes()) continue;  // edited, or another turn
    candidate.reasoning = said.reasoning;
    service.turns.put(conversation, std::move(candidate));
    learned = true;
  }
  return learned;
}

std::optional<StateSource> share_conversation(const Service& service, const HttpRequest& request,
                                              std::vector<GenerationRequest>& choices,
                                              std::function<void()> settled) {
  const auto key = service.sharing ? conversation_of(service, request) : std::nullopt;
  if (!key || choices.empty()) return std::nullopt;
  Request& first = choices.front().engine;
  const StateSource source = service.sharing->prepare(*key, first);
  // Goes with the last copy of the function, called or not.
  ++service.unsettled;
  const std::shared_ptr<void> last(
      nullptr, [&service, settled = std::move(settled)](void*) mutable {
        std::exchange(settled, nullptr)();  // and lets go of what it holds
        --service.unsettled;
      });
  first.on_state = [announce = std::move(first.on_state), last](const auto& state) {
    announce(state);
  };
  for (GenerationRequest& choice : choices) {
    if (choice.engine.prompt == first.prompt) choice.engine.state = first.state;
  }
  return source;
}

}  // namespace peregrine
