// POST /v1/completions: raw text in, raw text out (spec: api.md section 6).
#pragma once

#include <memory>

#include "server/http.h"
#include "server/service.h"

namespace peregrine {

void handle_completions(Service& service, const std::shared_ptr<Exchange>& exchange);

}  // namespace peregrine
