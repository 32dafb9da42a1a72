// What one request did, and its line in the log.
#pragma once

#include <cstdint>
#include <string>

#include "server/generation.h"

namespace peregrine {

struct RequestRecord {
  std::string id;        // as in the answer
  std::string endpoint;  // "chat"
  std::string peer;      // address
  std::string session;   // hash of X-Session-ID; empty: none
  std::string state;     // source_name() where the conversation is shared; empty: it is not
  bool stream = false;
  int choices = 0;
  std::string outcome;  // finish reasons, or what went wrong
  // Sums over the choices.
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0, reasoning_tokens = 0;
  // Of the first choice.
  double queue_ms = 0, ttft_ms = 0, total_ms = 0, average_iteration_ms = 0;
  double average_accept_length = 0;

  void add(const GenerationEnd& end);
};

const char* finish_name(FinishReason reason);  // "stop", "length", "tool_calls"

// The line `request_end key=value ...`; never prompt text.
void log_request_end(const RequestRecord& record);

// A stable short name for a client's session id, which may be anything.
std::string session_hash(const std::string& session_id);

}  // namespace peregrine
