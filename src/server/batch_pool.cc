#include "server/batch_pool.h"

#include <algorithm>
#include <tuple>

namespace peregrine {
namespace {

// In tokens, roughly: four bytes of prompt are one. A request without a limit may take any length.
int64_t work_of(const BatchLine& request) {
  constexpr int64_t kUnknown = 8192;
  const int64_t wanted = request.wanted_tokens > 0 ? request.wanted_tokens : kUnknown;
  return std::min<int64_t>(wanted, int64_t{1} << 32) +
         static_cast<int64_t>(request.body.size() / 4);
}

}  // namespace

bool BatchPool::before(const BatchJob& a, const BatchJob& b) const {
  switch (schedule_) {
    case BatchSchedule::kLongest: {
      const int64_t work_a = work_of(a.request), work_b = work_of(b.request);
      return std::tie(work_b, a.line) < std::tie(work_a, b.line);
    }
    case BatchSchedule::kPrefix: {
      const bool passed_a = a.request.body < last_body_, passed_b = b.request.body < last_body_;
      return std::tie(passed_a, a.request.body, a.line) <
             std::tie(passed_b, b.request.body, b.line);
    }
    default:
      return a.line < b.line;
  }
}

BatchJob BatchPool::take() {
  const auto next =
      std::min_element(jobs_.begin(), jobs_.end(),
                       [this](const BatchJob& a, const BatchJob& b) { return before(a, b); });
  BatchJob job = std::move(*next);
  if (next != jobs_.end() - 1) *next = std::move(jobs_.back());
  jobs_.pop_back();
  if (schedule_ == BatchSchedule::kPrefix) last_body_ = job.request.body;
  return job;
}

}  // namespace peregrine
