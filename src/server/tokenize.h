// POST /tokenize and /detokenize (spec: api.md section 6).
#pragma once

#include <memory>

#include "server/http.h"
#include "server/service.h"

namespace peregrine {

void handle_tokenize(Service& service, const std::shared_ptr<Exchange>& exchange);
void handle_detokenize(Service& service, const std::shared_ptr<Exchange>& exchange);

}  // namespace peregrine
