#include "report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/bandwidth.h"
#include "base/thread_pool.h"
#include "text/unicode.h"

namespace peregrine {
namespace {

using Json = nlohmann::ordered_json;

double rate(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }

// Positions of a block that were ever verified.
size_t used_positions(const GenerateStats& stats) {
  size_t used = stats.verified_at.size();
  while (used > 0 && stats.verified_at[used - 1] == 0) --used;
  return used;
}

template <typename Array>
Json first(const Array& values, size_t n) {
  return std::vector<int64_t>(values.begin(), values.begin() + static_cast<ptrdiff_t>(n));
}

Json logprob_json(const TokenLogprob& entry, const Tokenizer& tokenizer) {
  const std::string_view bytes = tokenizer.token_bytes(entry.id);
  // The raw bytes too: a token may hold a part of a character.
  return {{"id", entry.id},
          {"token", tokenizer.decode(std::span(&entry.id, 1))},
          {"bytes", std::vector<uint8_t>(bytes.begin(), bytes.end())},
          {"logprob", entry.logprob}};
}

Json stats_json(const RunReport& report) {
  const GenerateStats& s = report.answer.stats;
  const size_t used = used_positions(s);
  const auto steps = static_cast<double>(std::max<int64_t>(1, s.steps));
  return {{"prefill_seconds", report.prefill_seconds},
          {"prefill_tokens_per_second", report.prefill_tokens_per_second()},
          {"decode_seconds", report.answer.seconds},
          {"tokens_per_second", report.tokens_per_second()},
          {"steps", s.steps},
          {"step_ms", s.step_us / 1e3 / steps},
          {"draft_ms", s.draft_us / 1e3 / steps},
          {"drafted", s.drafted},
          {"verified", s.verified},
          {"accepted", s.accepted},
          {"verified_by_position", first(s.verified_at, used)},
          {"accepted_by_position", first(s.accepted_at, used)},
          {"acceptance_length", s.acceptance_length()},
          {"weight_bytes", report.answer.weight_bytes},
          {"weight_bytes_per_second", report.weight_bytes_per_second()},
          {"read_bandwidth", report.read_bandwidth},
          {"bandwidth_share", rate(report.weight_bytes_per_second(), report.read_bandwidth)}};
}

}  // namespace

double RunReport::tokens_per_second() const {
  // The first token costs no step: the prompt's own logits decide it.
  return rate(static_cast<double>(std::max<int64_t>(0, answer.stats.tokens - 1)), answer.seconds);
}
double RunReport::prefill_tokens_per_second() const {
  return rate(static_cast<double>(prompt_tokens - reused_tokens), prefill_seconds);
}
double RunReport::weight_bytes_per_second() const {
  return rate(static_cast<double>(answer.weight_bytes), answer.stats.step_us / 1e6);
}

double read_bandwidth(int threads, uint64_t weight_bytes) {
  constexpr size_t kSmall = size_t{32} << 20, kLarge = size_t{256} << 20;
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  ThreadPool pool(threads > 0 ? threads : cores);
  return measure_read_bandwidth(pool, weight_bytes <= kLarge ? kSmall : kLarge);
}

std::string closing_line(const RunReport& report) {
  const GenerateStats& s = report.answer.stats;
  std::string line = fmt::format("{} token{}, {:.1f} tokens/s; prompt {} tokens, {:.1f} tokens/s",
                                 s.tokens, s.tokens == 1 ? "" : "s", report.tokens_per_second(),
                                 report.prompt_tokens, report.prefill_tokens_per_second());
  if (report.reused_tokens > 0) line += fmt::format(" ({} reused)", report.reused_tokens);
  if (s.steps > 0 && report.read_bandwidth > 0)
    line += fmt::format("; weights read at {:.2f} GB/s, {:.0f}% of the {:.1f} GB/s of this machine",
                        report.weight_bytes_per_second() / 1e9,
                        100 * rate(report.weight_bytes_per_second(), report.read_bandwidth),
                        report.read_bandwidth / 1e9);
  if (s.drafted > 0)
    line += fmt::format("; {:.2f} tokens a step with drafts", s.acceptance_length());
  if (report.answer.interrupted) line += "; interrupted";
  return line;
}

nlohmann::ordered_json report_json(const RunReport& report, const Tokenizer& tokenizer) {
  const Answer& answer = report.answer;
  Json calls = Json::array();
  for (const AnswerCall& call : answer.calls)
    calls.push_back({{"id", call.id}, {"name", call.name}, {"arguments", call.arguments}});
  Json result = {{"text", answer.text},
                 {"reasoning", answer.reasoning},
                 {"tool_calls", calls},
                 {"ids", answer.ids},
                 {"finish_reason", answer.finish_reason},
                 {"usage",
                  {{"prompt_tokens", report.prompt_tokens},
                   {"reused_tokens", report.reused_tokens},
                   {"completion_tokens", answer.stats.tokens},
                   {"total_tokens", report.prompt_tokens + answer.stats.tokens}}},
                 {"stats", stats_json(report)}};
  if (!answer.logprobs.empty()) {
    Json list = Json::array();
    for (const TokenLogprobs& entry : answer.logprobs) {
      Json token = logprob_json(entry.chosen, tokenizer);
      token["top"] = Json::array();
      for (const TokenLogprob& other : entry.top)
        token["top"].push_back(logprob_json(other, tokenizer));
      list.push_back(std::move(token));
    }
    result["logprobs"] = std::move(list);
  }
  return result;
}

}  // namespace peregrine
