#include "server/chat_call.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/chat_prompt.h"
#include "server/generation_fields.h"

namespace peregrine {

void set_tools(ChatRequest& chat, std::vector<Tool> tools, std::optional<JsonValue> schema) {
  const auto is_chosen = [&](const Tool& t) { return t.declared_name == chat.tool_choice_name; };
  if (chat.tool_choice == ToolChoice::kFunction &&
      std::none_of(tools.begin(), tools.end(), is_chosen))
    throw ApiError(400,
                   fmt::format("tool_choice names \"{}\", which is not among the tools",
                               chat.tool_choice_name.substr(0, 200)),
                   "tool_choice", "invalid_value");
  if (chat.tool_choice == ToolChoice::kNone) tools.clear();
  if (schema) chat.response_format = ResponseFormat::kJsonSchema;
  attach_to_system(chat.messages, std::move(tools), std::move(schema));
}

void start_chat_call(Service& service, const std::shared_ptr<Exchange>& exchange, ChatCall call,
                     const std::string& endpoint, const std::string& id,
                     const MakeFormatter& make) {
  ChatPrompt prompt = make_chat_prompt(service, call.chat, exchange->request());
  ChatOutline outline{.prompt_tokens = static_cast<int64_t>(prompt.ids.size()), .headers = {}};
  if (!call.warning.empty()) outline.headers.emplace_back("X-Peregrine-Warning", call.warning);

  call.sampling.constraint = std::move(prompt.constraint);
  AnswerPlan plan{.record = make_record(*exchange, endpoint, id)};
  plan.record.stream = call.stream;
  plan.on_end = remember_answer(service, prompt);
  plan.choices.push_back({.engine = engine_request(service, {.prompt = std::move(prompt.ids),
                                                             .sampling = std::move(call.sampling),
                                                             .max_tokens = call.max_tokens,
                                                             .stop_ids = service.end_of_turn_ids}),
                          .start = prompt.start,
                          .parse_tools = prompt.parse_tools,
                          .parallel_calls = call.parallel_calls,
                          .forced = std::move(prompt.forced),
                          .stop = std::move(call.stop)});
  plan.formatter = make(outline);
  start_answer(service, exchange, std::move(plan));
}

}  // namespace peregrine
