// bench scheduler: what the host costs, on a synthetic device of known step time (spec:
// scheduler.md, "Measured").
#include <fmt/format.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>

#include "bench.h"
#include "cache/prefix_cache.h"
#include "engine/engine_loop.h"
#include "engine/synthetic_device.h"
#include "output.h"

namespace peregrine {
namespace {

using Json = nlohmann::ordered_json;

// The shape only sizes the page books: as many KV sources as the released model.
ModelConfig book_shape() {
  ModelConfig c;
  c.vocab_size = 2;
  c.n_layers = 4;
  c.head_dim = 32;
  c.index_head_dim = 32;
  c.window_size = 8;
  c.compress_ratios = {2, 2, 2, 1};
  c.kv_source_layers = {0, 1, 2, 3};
  c.index_source_layers = {0, 1, 2, 3};
  return c;
}

struct Run {
  int sequences = 1;
  double step_us = 0;
  bool overlap = true;
  int tokens = 0;  // a sequence
};

Json measure(const Run& run) {
  const ModelConfig config = book_shape();
  const auto backend = make_backend("reference", config, Numerics::kF32);
  EngineOptions options;
  options.max_running = run.sequences;
  options.max_waiting = run.sequences;
  options.max_step_tokens = run.sequences * 2 + 64;
  options.context_tokens = run.tokens + 64;
  options.overlap = run.overlap;
  StateStore state(
      *backend, config,
      {.slots = run.sequences + 2, .max_context = options.context_tokens, .slack = 64});
  PrefixCache cache(state, {.mode = PrefixCacheMode::kOff});
  Scheduler scheduler(state, cache,
                      {.max_running = run.sequences,
                       .max_step_tokens = options.max_step_tokens,
                       .context_tokens = options.context_tokens,
                       .window = config.window_size});
  SyntheticDevice device({.step_us = run.step_us});

  std::mutex mutex;
  std::condition_variable changed;
  int ended = 0;
  std::atomic<int64_t> emitted{0};
  EngineStats before, after;
  double begin_us = 0, end_us = 0;
  {
    EngineLoop loop(device, scheduler, cache, state, options);
    for (int i = 0; i < run.sequences; ++i) {
      auto s = std::make_unique<Sequence>();
      s->id = static_cast<RequestId>(i + 1);
      s->submit_us = now_us();
      s->request.prompt = {0};
      s->tokens = s->request.prompt;
      s->request.max_tokens = run.tokens;
      s->on_event = [&](const Event& event) {
        emitted.fetch_add(static_cast<int64_t>(event.tokens.size()), std::memory_order_relaxed);
        if (!event.finished) return;
        const std::lock_guard lock(mutex);
        ++ended;
        changed.notify_all();
      };
      loop.submit(std::move(s));
    }
    // Steady state: everybody decodes.
    while (emitted.load() < 4 * run.sequences)
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    before = loop.stats_by_rank().front();
    begin_us = now_us();
    while (emitted.load() < static_cast<int64_t>(run.tokens - 8) * run.sequences)
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    after = loop.stats_by_rank().front();
    end_us = now_us();
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return ended == run.sequences; });
  }
  const double steps = static_cast<double>(after.steps - before.steps);
  const double rows = static_cast<double>(after.output_tokens - before.output_tokens);
  const double idle = after.device_idle_seconds - before.device_idle_seconds;
  const double busy = after.device_busy_seconds - before.device_busy_seconds;
  const double host = after.host_seconds - before.host_seconds;
  return {{"sequences", run.sequences},
          {"overlap", run.overlap},
          {"device_step_us", run.step_us},
          {"steps_per_second", steps / ((end_us - begin_us) * 1e-6)},
          {"device_idle", idle / (idle + busy)},
          {"host_us_per_step", host * 1e6 / steps},
          {"host_us_per_row", host * 1e6 / rows}};
}

}  // namespace

Json bench_scheduler(const BenchOptions& options) {
  Json rows = Json::array();
  if (!options.json)
    write_output(fmt::format("{:>9}  {:>7}  {:>10}  {:>9}  {:>9}  {:>11}  {:>10}\n", "sequences",
                             "loop", "device us", "steps/s", "idle", "host us/step",
                             "host us/row"));
  for (const int sequences : {1, 16, 256, 4096}) {
    // A step long enough that the host's work hides behind it, as on a real model.
    const double step_us = std::max(1000.0, 1.5 * sequences);
    for (const bool overlap : {true, false}) {
      const int tokens = sequences >= 4096 ? 120 : 400;
      const Json row = measure({sequences, step_us, overlap, tokens});
      rows.push_back(row);
      if (options.json) continue;
      write_output(
          fmt::format("{:>9}  {:>7}  {:>10.0f}  {:>9.0f}  {:>8.2f}%  {:>12.1f}  {:>11.3f}\n",
                      sequences, overlap ? "overlap" : "plain", step_us,
                      row["steps_per_second"].get<double>(), 100 * row["device_idle"].get<double>(),
                      row["host_us_per_step"].get<double>(), row["host_us_per_row"].get<double>()));
    }
  }
  return rows;
}

}  // namespace peregrine
