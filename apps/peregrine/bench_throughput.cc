// bench throughput: many requests of mixed lengths through the engine, at several concurrencies.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>

#include "bench.h"
#include "engine/device.h"
#include "engine/model_impl.h"
#include "output.h"
#include "peregrine/engine.h"

namespace peregrine {
namespace {

using Json = nlohmann::ordered_json;

struct Lengths {
  int prompt, output;
};

// Lengths as chats have them: log-normal, prompts of 20 to 600 tokens and answers of 16 to 300.
std::vector<Lengths> chat_lengths(int count, uint64_t seed, int most) {
  std::mt19937_64 random(seed);
  std::lognormal_distribution<double> prompt(std::log(120.0), 0.9), output(std::log(70.0), 0.7);
  std::vector<Lengths> lengths;
  for (int i = 0; i < count; ++i)
    lengths.push_back({std::clamp(static_cast<int>(prompt(random)), 20, std::min(600, most / 2)),
                       std::clamp(static_cast<int>(output(random)), 16, std::min(300, most / 2))});
  return lengths;
}

Json measure(const std::shared_ptr<const Model>& model, const BenchOptions& o, int concurrency) {
  EngineOptions options = throughput_engine(*model, concurrency);
  options.overlap = !o.plain_loop;
  options.trace_file = o.trace_file;
  Engine engine(model, options);
  std::vector<Request> requests = throughput_requests(*model, o, concurrency);
  const size_t count = requests.size();
  std::vector<double> first, between;
  std::vector<double> last(count, 0);
  const double seconds =
      run_requests(engine, std::move(requests), [&](size_t i, const Event& event) {
        double& previous = last[i];
        if (!event.tokens.empty()) {
          const double now = now_us();
          if (previous > 0)
            between.push_back((now - previous) / static_cast<double>(event.tokens.size()));
          previous = now;
        }
        if (event.finished) first.push_back(event.usage->ttft_seconds * 1000);
      });
  const EngineStats stats = engine.stats();
  const double idle = stats.device_idle_seconds, busy = stats.device_busy_seconds;
  return {
      {"concurrency", concurrency},
      {"requests", count},
      {"output_tokens_per_second", static_cast<double>(stats.output_tokens) / seconds},
      {"prompt_tokens_per_second", static_cast<double>(stats.prompt_tokens) / seconds},
      {"ttft_ms_p50", percentile(first, 0.5)},
      {"ttft_ms_p99", percentile(first, 0.99)},
      {"token_ms_p50", percentile(between, 0.5) * 1e-3},
      {"token_ms_p99", percentile(between, 0.99) * 1e-3},
      {"acceptance_length",
       stats.verified == 0 ? 1.0
                           : 1.0 + static_cast<double>(stats.accepted) /
                                       static_cast<double>(stats.output_tokens - stats.accepted)},
      {"device_idle", idle / (idle + busy)},
      {"host_us_per_row", stats.host_seconds * 1e6 / static_cast<double>(stats.output_tokens)}};
}

}  // namespace

EngineOptions throughput_engine(const Model& model, int concurrency) {
  return {.max_running = concurrency,
          .max_waiting = 1 << 20,
          .context_tokens = std::min(1024, model.max_context()),
          .prefix_cache = PrefixCacheMode::kOff};
}

std::vector<Request> throughput_requests(const Model& model, const BenchOptions& options,
                                         int concurrency) {
  const int context = throughput_engine(model, concurrency).context_tokens;
  const DraftOptions drafts = draft_options(options.draft, model);
  std::mt19937_64 random(1);
  std::vector<Request> requests;
  for (const Lengths& length : chat_lengths(std::max(8, 2 * concurrency), 7, context)) {
    Request& r = requests.emplace_back();
    r.prompt = random_prompt(model, length.prompt, random);
    r.max_tokens = length.output;
    r.sampling.temperature = 0;
    r.draft = drafts;
  }
  return requests;
}

double run_requests(Engine& engine, std::vector<Request> requests,
                    const std::function<void(size_t request, const Event& event)>& on_event) {
  std::mutex mutex;
  std::condition_variable changed;
  size_t ended = 0;
  const double begin = now_us();
  for (size_t i = 0; i < requests.size(); ++i) {
    engine.submit(std::move(requests[i]), [&, i](const Event& event) {
      const std::lock_guard lock(mutex);
      on_event(i, event);
      if (!event.finished) return;
      ++ended;
      changed.notify_all();
    });
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return ended == requests.size(); });
  return (now_us() - begin) * 1e-6;
}

Json bench_throughput(const BenchOptions& options) {
  const auto model = load_model(options.model);
  Json rows = Json::array();
  if (!options.json)
    write_output(fmt::format("{:>11} {:>9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>9} {:>7} {:>11}\n",
                             "concurrency", "tokens/s", "prompt/s", "ttft p50", "ttft p99",
                             "token p50", "token p99", "a step", "idle", "host us/row"));
  for (int concurrency = 1; concurrency <= options.max_concurrency; concurrency *= 4) {
    const Json row = measure(model, options, concurrency);
    rows.push_back(row);
    if (options.json) continue;
    const auto number = [&](const char* key) { return row[key].get<double>(); };
    write_output(fmt::format(
        "{:>11} {:>9.1f} {:>10.1f} {:>8.1f}ms {:>8.1f}ms {:>8.2f}ms {:>8.2f}ms {:>9.2f} {:>6.2f}% "
        "{:>11.2f}\n",
        concurrency, number("output_tokens_per_second"), number("prompt_tokens_per_second"),
        number("ttft_ms_p50"), number("ttft_ms_p99"), number("token_ms_p50"),
        number("token_ms_p99"), number("acceptance_length"), 100 * number("device_idle"),
        number("host_us_per_row")));
  }
  return rows;
}

}  // namespace peregrine
