// POST /v1/messages and /v1/messages/count_tokens (spec: api.md section 7).
#pragma once

#include "server/http.h"
#include "server/service.h"

namespace peregrine {

void handle_anthropic_messages(Service& service, const std::shared_ptr<Exchange>& exchange);
void handle_anthropic_count_tokens(Service& service, const std::shared_ptr<Exchange>& exchange);

}  // namespace peregrine
