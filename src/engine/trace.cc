#include "engine/trace.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>

namespace peregrine {

// Enough for minutes of a busy engine; a trace is read by eye.
constexpr size_t kMaxSpans = 1'000'000;

void Trace::add(Lane lane, const char* name, double begin_us, double end_us, long long step,
                int rows) {
  if (spans_.size() < kMaxSpans) spans_.push_back({lane, name, begin_us, end_us, step, rows});
}

void Trace::write() {
  std::FILE* file = std::fopen(path_.c_str(), "w");
  if (!file) {
    spdlog::warn("trace {}: cannot be written", path_);
    return;
  }
  double origin = 0;
  for (const Span& span : spans_)
    origin = origin == 0 ? span.begin_us : std::min(origin, span.begin_us);
  fmt::print(file,
             "[{{\"ph\":\"M\",\"pid\":1,\"tid\":1,\"name\":\"thread_name\",\"args\":{{\"name\":"
             "\"host\"}}}},\n"
             "{{\"ph\":\"M\",\"pid\":1,\"tid\":2,\"name\":\"thread_name\",\"args\":{{\"name\":"
             "\"device\"}}}}");
  for (const Span& span : spans_)
    fmt::print(
        file,
        ",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":{},\"name\":\"{}\",\"ts\":{:.1f},\"dur\":{:.1f},"
        "\"args\":{{\"step\":{},\"rows\":{}}}}}",
        static_cast<int>(span.lane), span.name, span.begin_us - origin, span.end_us - span.begin_us,
        span.step, span.rows);
  fmt::print(file, "]\n");
  std::fclose(file);
}

}  // namespace peregrine
