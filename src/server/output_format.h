// What a request demands of the form of its answer: response_format, and tool_choice that asks for
// a call.
#pragma once

#include <memory>
#include <string>

#include "sampling/output_constraint.h"
#include "server/service.h"
#include "text/chat.h"
#include "text/output_parser.h"

namespace peregrine {

// Null: the answer is free. `start`: what the model goes on with; `forced`: the opening of a call
// that the prompt ends with. Throws ApiError 400 for a schema that is not understood and for a
// continued message that does not have the form.
std::shared_ptr<const OutputConstraint> output_constraint(const Service& service,
                                                          const ChatRequest& request,
                                                          OutputStart start,
                                                          const std::string& forced);

}  // namespace peregrine
