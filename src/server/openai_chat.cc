#include "server/openai_chat.h"

#include "server/answer.h"
#include "server/chat_prompt.h"
#include "server/generation_fields.h"
#include "server/openai_chat_answer.h"
#include "server/openai_chat_request.h"

namespace peregrine {

void handle_chat_completions(Service& service, const std::shared_ptr<Exchange>& exchange) {
  const JsonValue body = parse_body(exchange->request());
  OpenAiChatRequest request = parse_openai_chat(body, service);
  ChatPrompt prompt = make_chat_prompt(service, request.chat, exchange->request());

  request.sampling.constraint = std::move(prompt.constraint);
  GenerationRequest one{.engine = engine_request(service, {.prompt = std::move(prompt.ids),
                                                           .sampling = request.sampling,
                                                           .max_tokens = request.max_tokens,
                                                           .stop_ids = service.end_of_turn_ids}),
                        .start = prompt.start,
                        .parse_tools = prompt.parse_tools,
                        .parallel_calls = request.parallel_calls,
                        .forced = prompt.forced,
                        .stop = std::move(request.stop)};

  OpenAiAnswerOptions options{.id = random_id("chatcmpl-"),
                              .model = request.model,
                              .created = unix_time(),
                              .choices = request.choices,
                              .include_usage = request.include_usage,
                              .logprobs = request.sampling.logprobs.has_value(),
                              .thinking = prompt.start == OutputStart::kReasoning,
                              .tools = request.chat.tools()};
  if (!request.warning.empty())
    options.headers.emplace_back("X-Peregrine-Warning", request.warning);

  AnswerPlan plan{.record = make_record(*exchange, "chat", options.id)};
  plan.record.stream = request.stream;
  plan.on_end = remember_answer(service, prompt);
  for (size_t i = 0; i < static_cast<size_t>(request.choices); ++i) {
    plan.choices.push_back(one);
    if (request.sampling.seed)
      plan.choices.back().engine.sampling.seed = choice_seed(*request.sampling.seed, i);
  }
  plan.formatter = request.stream ? make_chat_stream(service, exchange, std::move(options))
                                  : make_chat_object(service, exchange, std::move(options));
  start_answer(service, exchange, std::move(plan));
}

}  // namespace peregrine
