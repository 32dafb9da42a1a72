// GET /v1/models and /v1/models/{id}, in OpenAI's or Anthropic's form (spec: api.md section 6).
#pragma once

#include <memory>

#include "server/http.h"
#include "server/service.h"

namespace peregrine {

void handle_models(Service& service, const std::shared_ptr<Exchange>& exchange);

}  // namespace peregrine
