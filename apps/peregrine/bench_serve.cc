// bench serve: many clients at once against a running server. Every stream is compared with the
// answer that the same prompt got when nobody else was asking.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
// clang-format off: Boost 1.81 wants these first

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "bench.h"
#include "engine/device.h"
#include "output.h"
#include "stream_client.h"
// clang-format on

namespace peregrine {
namespace {

namespace asio = boost::asio;
using Json = nlohmann::ordered_json;

constexpr const char* kDelayMetric = "peregrine_loop_delay_seconds";

// Of equal length for every client, so that their times can be compared.
std::vector<std::string> make_bodies(int max_tokens) {
  std::vector<std::string> bodies;
  for (const char* who : {"fox", "dog", "cat", "owl", "bear", "crow", "wolf", "hen"})
    bodies.push_back(Json{{"prompt", fmt::format("Once upon a time there was a {} who", who)},
                          {"max_tokens", max_tokens},
                          {"temperature", 0},
                          {"ignore_eos", true},
                          {"stream", true},
                          {"stream_options", {{"include_usage", true}}}}
                         .dump());
  return bodies;
}

// Samples of the text format of Prometheus, by name and labels.
std::map<std::string, double> parse_metrics(const std::string& text) {
  std::map<std::string, double> values;
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    const size_t space = line.rfind(' ');
    if (line.empty() || line[0] == '#' || space == line.npos) continue;
    values[line.substr(0, space)] = std::strtod(line.c_str() + space + 1, nullptr);
  }
  return values;
}

// The bound of the first bucket below which `share` of what came between two readings lies.
double histogram_percentile(const std::map<std::string, double>& before,
                            const std::map<std::string, double>& after, const std::string& name,
                            double share) {
  std::map<double, double> buckets;  // upper bound -> count up to it
  const std::string prefix = name + "_bucket{le=\"";
  for (auto it = after.lower_bound(prefix); it != after.end() && it->first.starts_with(prefix);
       ++it) {
    const auto old = before.find(it->first);
    buckets[std::strtod(it->first.c_str() + prefix.size(), nullptr)] =
        it->second - (old == before.end() ? 0 : old->second);
  }
  for (const auto& [bound, count] : buckets)
    if (count >= share * buckets.rbegin()->second) return bound;
  return 0;
}

struct Sample {
  double seconds = 0, resident_bytes = 0, running = 0, waiting = 0;
};

struct Ended {
  double begin_us, first_us, end_us;
};

class Load {
 public:
  explicit Load(const BenchOptions& options)
      : o_(options), address_(parse_address(options.url)), bodies_(make_bodies(o_.max_tokens)) {}

  Json run() {
    asio::co_spawn(io_, conduct(), [this](const std::exception_ptr& error) {
      failure_ = error;
      if (error) io_.stop();
    });
    io_.run();
    if (failure_) rethrow();
    return report();
  }

 private:
  [[noreturn]] void rethrow() const {
    try {
      std::rethrow_exception(failure_);
    } catch (const boost::system::system_error& error) {
      fail(ErrorKind::kIo, "{}: {}", o_.url, error.code().message());
    }
  }

  asio::awaitable<void> conduct() {
    StreamClient alone(io_.get_executor());
    co_await alone.connect(address_);
    for (const std::string& body : bodies_) {
      const StreamedText text = read_stream(co_await alone.ask(body));
      if (!text.error.empty()) fail(ErrorKind::kIo, "{}: {}", o_.url, text.error);
      expected_.push_back(text.text);
    }
    before_ = after_ = parse_metrics(co_await alone.get("/metrics"));
    begin_us_ = now_us();
    until_us_ = begin_us_ + o_.seconds * 1e6;
    for (int i = 0; i < o_.clients; ++i)
      asio::co_spawn(io_, client(static_cast<size_t>(i)), asio::detached);
    asio::steady_timer timer(io_);
    for (double next_us = begin_us_; now_us() < until_us_;) {
      after_ = parse_metrics(co_await alone.get("/metrics"));
      take_sample();
      next_us += std::min(10.0, o_.seconds / 4.0) * 1e6;
      timer.expires_after(std::chrono::microseconds(
          static_cast<int64_t>(std::max(0.0, std::min(next_us, until_us_) - now_us()))));
      co_await timer.async_wait(asio::use_awaitable);
    }
    after_ = parse_metrics(co_await alone.get("/metrics"));
    take_sample();
  }

  void take_sample() {
    samples_.push_back({.seconds = (now_us() - begin_us_) * 1e-6,
                        .resident_bytes = after_["process_resident_memory_bytes"],
                        .running = after_["peregrine_running_sequences"],
                        .waiting = after_["peregrine_waiting_sequences"]});
    const Sample& s = samples_.back();
    if (!o_.json)
      write_output(fmt::format(
          "{:>7.0f} s {:>10} tokens {:>7} answers {:>4} errors {:>8.1f} MB {:>5} running {:>5} "
          "waiting\n",
          s.seconds, tokens_, ended_.size(), errors_, s.resident_bytes * 1e-6, s.running,
          s.waiting));
  }

  asio::awaitable<void> client(size_t index) {
    StreamClient client(io_.get_executor());
    try {
      co_await client.connect(address_);
      for (size_t turn = 0; now_us() < until_us_; ++turn) {
        const size_t which = (index + turn) % bodies_.size();
        const StreamedAnswer answer = co_await client.ask(bodies_[which]);
        judge(which, answer);
        if (turn == 0) warm_us_ = std::max(warm_us_, answer.end_us);
      }
    } catch (const std::exception& error) {
      note_error(error.what());
    }
  }

  void judge(size_t which, const StreamedAnswer& answer) {
    const StreamedText text = read_stream(answer);
    if (!text.error.empty()) return note_error(text.error);
    if (text.tokens != o_.max_tokens)
      return note_error(fmt::format("{} tokens, expected {}", text.tokens, o_.max_tokens));
    if (text.text != expected_[which])
      return note_error("another text than the same prompt got alone");
    tokens_ += text.tokens;
    ended_.push_back({answer.begin_us, answer.first_us, answer.end_us});
  }

  void note_error(const std::string& sentence) {
    if (errors_++ == 0) first_error_ = sentence;
  }

  Json report() const {
    // Fairness is judged while everybody is asking: not in the first round, when the queue fills,
    // nor behind the end.
    std::vector<double> first, whole;
    int64_t tokens = 0;
    for (const Ended& e : ended_) {
      if (e.end_us <= until_us_) tokens += o_.max_tokens;
      if (e.begin_us < warm_us_ || e.end_us > until_us_) continue;
      first.push_back((e.first_us - e.begin_us) * 1e-3);
      whole.push_back((e.end_us - e.begin_us) * 1e-3);
    }
    const double fastest = whole.empty() ? 0 : *std::min_element(whole.begin(), whole.end());
    const double slowest = whole.empty() ? 0 : *std::max_element(whole.begin(), whole.end());
    Json result = {
        {"clients", o_.clients},
        {"seconds", o_.seconds},
        {"answers", ended_.size()},
        {"errors", errors_},
        {"first_error", first_error_},
        {"output_tokens_per_second", static_cast<double>(tokens) / o_.seconds},
        {"answers_after_first_round", whole.size()},
        {"ttft_ms_p50", percentile(first, 0.5)},
        {"ttft_ms_p99", percentile(first, 0.99)},
        {"answer_ms_p50", percentile(whole, 0.5)},
        {"answer_ms_p99", percentile(whole, 0.99)},
        {"answer_ms_fastest", fastest},
        {"answer_ms_slowest", slowest},
        {"slowest_by_fastest", fastest > 0 ? slowest / fastest : 0},
        {"loop_delay_ms_p50", 1e3 * histogram_percentile(before_, after_, kDelayMetric, 0.5)},
        {"loop_delay_ms_p99", 1e3 * histogram_percentile(before_, after_, kDelayMetric, 0.99)}};
    for (const Sample& s : samples_)
      result["samples"].push_back({{"seconds", s.seconds},
                                   {"resident_bytes", s.resident_bytes},
                                   {"running", s.running},
                                   {"waiting", s.waiting}});
    return result;
  }

  const BenchOptions& o_;
  const ServerAddress address_;
  const std::vector<std::string> bodies_;
  std::vector<std::string> expected_;  // the text of each body, asked alone
  asio::io_context io_{1};
  std::exception_ptr failure_;
  double begin_us_ = 0, until_us_ = 0;
  double warm_us_ = 0;  // every client has had an answer
  int64_t tokens_ = 0;
  int errors_ = 0;
  std::string first_error_;
  std::vector<Ended> ended_;
  std::vector<Sample> samples_;
  std::map<std::string, double> before_, after_;
};

}  // namespace

Json bench_serve(const BenchOptions& options) {
  Load load(options);
  Json result = load.run();
  if (!options.json) {
    const auto number = [&](const char* key) { return result[key].get<double>(); };
    write_output(fmt::format(
        "{} clients: {:.1f} tokens/s, {} answers, {} errors\n"
        "behind the first round, {} answers: first token p50 {:.0f} ms, p99 {:.0f} ms; whole "
        "answer p50 {:.0f} ms, p99 {:.0f} ms, fastest {:.0f} ms, slowest {:.0f} ms ({:.2f} times)\n"
        "event loop of the server late by at most {} ms (p50), {} ms (p99)\n",
        options.clients, number("output_tokens_per_second"), number("answers"), number("errors"),
        number("answers_after_first_round"), number("ttft_ms_p50"), number("ttft_ms_p99"),
        number("answer_ms_p50"), number("answer_ms_p99"), number("answer_ms_fastest"),
        number("answer_ms_slowest"), number("slowest_by_fastest"), number("loop_delay_ms_p50"),
        number("loop_delay_ms_p99")));
  }
  if (result["errors"] != 0)
    fail(ErrorKind::kIo, "{} of the streams were wrong; the first: {}", result["errors"].get<int>(),
         result["first_error"].get<std::string>());
  return result;
}

}  // namespace peregrine
