#include "batch_progress.h"

#include <fmt/format.h>

#include <cstdio>

namespace peregrine {
namespace {

std::string rates(const EngineStats& stats, double seconds) {
  const auto number = [](int64_t n) { return static_cast<double>(n); };
  std::string text = fmt::format("{:.1f} tokens/s", number(stats.output_tokens) / seconds);
  // Every step of a sequence gives one token and those drafts that stood.
  if (const int64_t steps = stats.output_tokens - stats.accepted; stats.verified > 0 && steps > 0)
    text += fmt::format(", {:.2f} a step", number(stats.output_tokens) / number(steps));
  if (stats.cached_tokens > 0)
    text += fmt::format(
        ", {:.0f}% of prompts cached",
        100 * number(stats.cached_tokens) / number(stats.cached_tokens + stats.prompt_tokens));
  return text;
}

std::string clock_time(double seconds) {
  const auto s = static_cast<int64_t>(seconds);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

}  // namespace

std::string BatchReport::text(const BatchProgress& progress, const EngineStats& stats) const {
  const int64_t done = resumed_ + progress.done;
  std::string text = fmt::format("{} requests", done);
  if (total_ > 0)
    text = fmt::format("{} of {} requests ({:.1f}%)", done, total_,
                       100.0 * static_cast<double>(done) / static_cast<double>(total_));
  text += fmt::format("; {} running; {}", progress.running, rates(stats, seconds()));
  if (progress.failed > 0) text += fmt::format("; {} failed", progress.failed);
  if (progress.draining) return text + "; ending, Ctrl-C again ends now";
  if (total_ > done && progress.done > 0)
    text += fmt::format("; {} left", clock_time(seconds() * static_cast<double>(total_ - done) /
                                                static_cast<double>(progress.done)));
  return text;
}

void BatchReport::show(const BatchProgress& progress, const Engine& engine) {
  static const bool terminal = error_is_terminal();
  const auto pause = terminal ? std::chrono::milliseconds(250) : std::chrono::seconds(10);
  if (Clock::now() - shown_ < pause) return;
  shown_ = Clock::now();
  const std::string now = text(progress, engine.stats());
  terminal ? line_.show(now, seconds()) : fmt::print(stderr, "{}\n", now);
}

void BatchReport::finish(const BatchProgress& progress, const Engine& engine) {
  line_.clear();
  const EngineStats stats = engine.stats();
  std::string text = fmt::format("{} requests", progress.done);
  if (progress.failed > 0) text += fmt::format(", {} failed", progress.failed);
  if (resumed_ > 0) text += fmt::format("; {} were done before", resumed_);
  if (!progress.complete) text += "; not all: the same command goes on from here";
  fmt::print(stderr, "{}; {} tokens in {:.1f} s and {} steps, {}\n", text, stats.output_tokens,
             seconds(), stats.steps, rates(stats, seconds()));
}

}  // namespace peregrine
