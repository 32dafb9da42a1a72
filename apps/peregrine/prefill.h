// Brings a session to a prompt, with progress and Ctrl-C; shared by generate and chat.
#pragma once

#include <cstdint>
#include <span>

#include "model_options.h"
#include "report.h"

namespace peregrine {

// Throws Error(kInvalidArgument) unless the context holds the prompt and one more token.
void check_room(size_t prompt_tokens, const ModelOptions& options, const Model& model);

// Fills the prompt's part of `report`. False when Ctrl-C came first.
bool prefill(Session& session, std::span<const int32_t> prompt, RunReport& report);

}  // namespace peregrine
