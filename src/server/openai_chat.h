// POST /v1/chat/completions (spec: api.md sections 2 to 4).
#pragma once

#include <memory>

#include "server/http.h"
#include "server/service.h"
#include "text/json_text.h"

namespace peregrine {

// Answers or throws ApiError, Error. Runs on a worker thread.
void handle_chat_completions(Service& service, const std::shared_ptr<Exchange>& exchange);

}  // namespace peregrine
