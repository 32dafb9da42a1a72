// The answer to one request: one or more generations, written by a protocol's formatter.
//
// Owns: starting all or none, the order of updates, cancelling when the client is gone, and the log
// line at the end. Assumes nothing of the protocol; a formatter knows nothing of threads.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "server/api_error.h"
#include "server/generation.h"
#include "server/request_log.h"
#include "server/service.h"

namespace peregrine {

// Writes one answer to its exchange. All members run on the exchange's strand.
class AnswerFormatter {
 public:
  virtual ~AnswerFormatter() = default;
  virtual void begin() = 0;  // everything was accepted by the engine
  virtual void update(size_t choice, const GenerationUpdate& update) = 0;
  virtual void end() = 0;                        // all choices have ended well
  virtual void fail(const ApiError& error) = 0;  // instead of end(); nothing follows
};

struct AnswerPlan {
  std::vector<GenerationRequest> choices;
  std::shared_ptr<AnswerFormatter> formatter;
  RequestRecord record;
  // Told of every choice that ended well, on the strand.
  std::function<void(size_t choice, const GenerationEnd& end)> on_end = {};
};

// Throws Error when the engine refuses one of the choices; the exchange is then untouched.
void start_answer(Service& service, std::shared_ptr<Exchange> exchange, AnswerPlan plan);

}  // namespace peregrine
