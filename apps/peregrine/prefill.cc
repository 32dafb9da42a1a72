#include "prefill.h"

#include <fmt/format.h>

#include <chrono>

#include "base/fail.h"
#include "interrupt.h"
#include "output.h"

namespace peregrine {

void check_room(size_t prompt_tokens, const ModelOptions& options, const Model& model) {
  const int context = options.context_tokens > 0 ? options.context_tokens : model.max_context();
  if (prompt_tokens >= static_cast<size_t>(context))
    fail(ErrorKind::kInvalidArgument,
         "the prompt has {} tokens, but the context holds {} with at least one for the answer",
         prompt_tokens, context);
}

bool prefill(Session& session, std::span<const int32_t> prompt, RunReport& report) {
  ProgressLine line;
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const SyncResult result = session.sync(prompt, [&](int64_t done, int64_t total) {
    line.show(fmt::format("Reading the prompt: {} of {} tokens, {:.0f} s", done, total, seconds()),
              seconds());
    return !InterruptGuard::requested();
  });
  report.prompt_tokens = static_cast<int64_t>(prompt.size());
  report.reused_tokens = result.kept;
  report.prefill_seconds = seconds();
  return result.complete;
}

}  // namespace peregrine
