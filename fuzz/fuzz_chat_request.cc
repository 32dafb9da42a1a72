// Any bytes as the body of a chat request: a conversation that renders, or a sentence that says
// what is wrong.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "peregrine/error.h"
#include "server/api_error.h"
#include "server/sampled_turns.h"
#include "text/chat.h"
#include "text/json_text.h"
#include "text/prompt.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace peregrine;
  const JsonParse parsed = parse_json(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!parsed.value) {
    if (parsed.problem.empty()) std::abort();
    return 0;
  }
  try {
    const ChatRequest request = parse_chat_request(*parsed.value);
    const RenderedPrompt prompt = render_prompt(request);
    if (prompt.segments.empty()) std::abort();
    ConversationKey key("fuzz");
    for (const Message& message : request.messages) key.add(message);
    if (key.bytes().size() != 32) std::abort();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInvalidArgument) std::abort();
    // What a client is told must itself be JSON.
    if (!parse_json(error_json(to_api_error(error), Dialect::kOpenAi)).value) std::abort();
  }
  return 0;
}
