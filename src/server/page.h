// The page at "/": a chat and a live view of the engine, one HTML file in the program (page/).
#pragma once

#include "server/http.h"
#include "server/service.h"

namespace peregrine {

// The page with headers that allow its own script and style and nothing else.
HttpResponse page_response();

// GET /engine/stats: the engine's numbers as JSON; what the page polls.
void handle_engine_stats(Service& service, const std::shared_ptr<Exchange>& exchange);

}  // namespace peregrine
