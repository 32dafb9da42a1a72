// Which conversation a request belongs to, and what sharing between servers does for it.
//
// A client names the conversation in a header or in prompt_cache_key. Names of different API keys
// never meet. Nothing of a name is kept or logged; kvshare/ sees its hash.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/generation.h"
#include "server/http.h"
#include "server/sampled_turns.h"
#include "server/service.h"
#include "text/chat.h"

namespace peregrine {

// Whoever shows the same key owns the same conversations.
std::string conversation_owner(const HttpRequest& request);

// Whether name_conversation() might find a name; looks at no more than it has to.
bool may_name_conversation(const Service& service, const HttpRequest& request);

// Gives the request the header where it names its conversation in the body only: prompt_cache_key
// of the OpenAI protocols, a string. Parses the body; before everything else here.
void name_conversation(const Service& service, Exchange& exchange);

// conversation_key() of the request's conversation; nothing: it names none.
std::optional<std::string> conversation_of(const Service& service, const HttpRequest& request);

// Throws ApiError 400 for a second turn without a name where the server is strict.
void require_conversation(const Service& service, const ChatRequest& chat,
                          const HttpRequest& request);

// Learns the tokens of earlier answers that another server sampled, from the newest state of the
// conversation: service.turns finds them from then on. `start`: the key before the first message;
// `ids`: the prompt as far as this server can render it. True: something was learned. May wait for
// a fetch; call it on a preparing thread.
bool learn_turns(const Service& service, const ChatRequest& chat, const HttpRequest& request,
                 const ConversationKey& start, const std::vector<int32_t>& ids);

// Gives the choices the conversation's state to continue from; the first one announces its own.
// `settled` is called once, from any thread, when that has happened or when there will be no state.
// Nothing: the request belongs to no shared conversation, and `settled` is not called.
std::optional<StateSource> share_conversation(const Service& service, const HttpRequest& request,
                                              std::vector<GenerationRequest>& choices,
                                              std::function<void()> settled);

}  // namespace peregrine
