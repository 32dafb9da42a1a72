#include "server/responses.h"

#include "server/responses_answer.h"
#include "server/responses_request.h"

namespace peregrine {

void handle_responses(Service& service, const std::shared_ptr<Exchange>& exchange) {
  const JsonValue body = parse_body(exchange->request());
  ResponsesRequest request = parse_responses(body, service);
  ResponsesAnswerOptions options{.id = random_id("resp_"),
                                 .model = request.call.model,
                                 .created = unix_time(),
                                 .stream = request.call.stream,
                                 .summary = request.summary,
                                 .sealed = request.sealed,
                                 .custom_tools = std::move(request.custom_tools),
                                 .tools = request.call.chat.tools(),
                                 .echo = std::move(request.echo)};
  const std::string id = options.id;
  start_chat_call(service, exchange, std::move(request.call), "responses", id,
                  [&](const ChatOutline& outline) {
                    options.headers = outline.headers;
                    return make_responses_answer(exchange, std::move(options));
                  });
}

}  // namespace peregrine
