#include "server/request_log.h"

#include <spdlog/spdlog.h>

namespace peregrine {

const char* finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kToolCalls:
      return "tool_calls";
    default:
      return "stop";
  }
}

namespace {

const char* outcome_of(const GenerationEnd& end) {
  switch (end.reason) {
    case EndReason::kCancelled:
      return "cancelled";
    case EndReason::kDeadline:
      return "deadline";
    case EndReason::kError:
      return "error";
    default:
      return finish_name(end.finish);
  }
}

}  // namespace

void RequestRecord::add(const GenerationEnd& end) {
  const Usage& usage = end.usage;
  if (choices++ == 0) {
    queue_ms = usage.queue_seconds * 1000;
    ttft_ms = usage.ttft_seconds * 1000;
    total_ms = usage.total_seconds * 1000;
    average_iteration_ms = usage.average_iteration_ms();
    average_accept_length = usage.average_accept_length();
  }
  outcome += (outcome.empty() ? "" : ",") + std::string(outcome_of(end));
  prompt_tokens += usage.prompt_tokens;
  cached_tokens += usage.cached_tokens;
  completion_tokens += end.completion_tokens;
  reasoning_tokens += end.reasoning_tokens;
}

void log_request_end(const RequestRecord& r) {
  spdlog::info(
      "request_end id={} endpoint={} peer={} session={} state={} stream={} choices={} finish={} "
      "prompt_tokens={} cached_tokens={} completion_tokens={} reasoning_tokens={} queue_ms={:.1f} "
      "ttft_ms={:.1f} total_ms={:.1f} average_iteration_ms={:.2f} average_accept_length={:.2f}",
      r.id, r.endpoint, r.peer, r.session.empty() ? "-" : r.session,
      r.state.empty() ? "-" : r.state, r.stream, r.choices, r.outcome, r.prompt_tokens,
      r.cached_tokens, r.completion_tokens, r.reasoning_tokens, r.queue_ms, r.ttft_ms, r.total_ms,
      r.average_iteration_ms, r.average_accept_length);
}

std::string session_hash(const std::string& session_id) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : session_id) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return fmt::format("{:016x}", hash);
}

}  // namespace peregrine
