// POST /v1/responses (spec: api.md section 8).
#pragma once

#include "server/http.h"
#include "server/service.h"

namespace peregrine {

void handle_responses(Service& service, const std::shared_ptr<Exchange>& exchange);

}  // namespace peregrine
