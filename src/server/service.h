// What all request handlers share.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "kvshare/sharing.h"
#include "peregrine/engine.h"
#include "sampling/output_constraint.h"
#include "server/metrics.h"
#include "server/sampled_turns.h"
#include "server/server_options.h"
#include "text/tokenizer.h"

namespace peregrine {

struct Service {
  Service(Engine& engine, ServerOptions options, const DraftOptions& draft,
          Sharing* sharing = nullptr);

  Engine& engine;
  Sharing* const sharing;  // null: conversations stay on this server
  const Tokenizer& tokenizer;
  const ServerOptions options;
  const DraftOptions draft;
  const std::string version;      // of the program
  const std::string fingerprint;  // of model and program: "system_fingerprint"
  const int64_t started;          // Unix time
  const std::vector<int32_t> end_of_turn_ids;
  const std::shared_ptr<const SortedTokens> sorted_tokens;  // for constrained answers
  mutable SampledTurns turns;
  Metrics metrics;
  std::atomic<bool> draining{false};      // requests are refused: shutting down
  mutable std::atomic<int> unsettled{0};  // calls of share_conversation()'s `settled` to come

  int context_tokens() const { return engine.options().context_tokens; }
};

int64_t unix_time();
// `prefix` and 24 random letters and digits: "chatcmpl-...".
std::string random_id(const std::string& prefix);

}  // namespace peregrine
