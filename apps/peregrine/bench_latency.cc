// bench latency: what a long prompt costs those who are decoding beside it, and what they cost it.
// Rounds measure decoding before, during and after a prompt, so that both sides of a ratio meet the
// same load of the machine.
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <future>
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

constexpr int kRounds = 5;
constexpr size_t kQuietSteps = 400;  // before the prompt, and again after it

// Times between the events of a sequence that decodes all the while.
class Listener {
 public:
  void hear(bool finished) {
    const double now = now_us();
    const std::lock_guard lock(mutex_);
    if (last_ > 0 && !finished) gaps_.push_back((now - last_) * 1e-3);
    last_ = now;
    finished_ = finished_ || finished;
    changed_.notify_all();
  }
  // The times so far, once there are `count` or the sequence is finished; forgets them.
  std::vector<double> take(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finished_ || gaps_.size() >= count; });
    return std::exchange(gaps_, {});
  }
  void wait_for_end() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finished_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  double last_ = 0;
  bool finished_ = false;
  std::vector<double> gaps_;  // milliseconds
};

// Reads a prompt; returns the seconds to its first token.
double read_prompt(Engine& engine, std::vector<int32_t> prompt) {
  std::promise<double> read;
  engine.submit({.prompt = std::move(prompt), .max_tokens = 1}, [&](const Event& event) {
    if (event.finished) read.set_value(event.usage->ttft_seconds);
  });
  return read.get_future().get();
}

struct Round {
  double alone_seconds;               // to the prompt's first token with nothing beside it
  double beside_seconds;              // beside decoding
  std::vector<double> quiet, beside;  // between tokens, milliseconds

  double ratio(double share) const { return percentile(beside, share) / percentile(quiet, share); }
};

Round measure(Engine& engine, const std::vector<int32_t>& prompt, Request decoding) {
  Round round{};
  round.alone_seconds = read_prompt(engine, prompt);
  Listener listener;
  const RequestId id = engine.submit(std::move(decoding),
                                     [&](const Event& event) { listener.hear(event.finished); });
  round.quiet = listener.take(kQuietSteps);
  round.beside_seconds = read_prompt(engine, prompt);
  round.beside = listener.take(0);
  const auto after = listener.take(kQuietSteps);
  round.quiet.insert(round.quiet.end(), after.begin(), after.end());
  engine.cancel(id);
  listener.wait_for_end();
  return round;
}

}  // namespace

Json bench_latency(const BenchOptions& options) {
  const auto model = load_model(options.model);
  const int prompt_tokens = std::min(16000, model->max_context() - 64);
  Engine engine(model, {.max_running = 2,
                        .context_tokens = model->max_context(),
                        .prefix_cache = PrefixCacheMode::kOff});
  std::mt19937_64 random(1);
  const auto prompt = random_prompt(*model, prompt_tokens, random);
  Request decoding{.prompt = random_prompt(*model, 32, random)};
  decoding.sampling.temperature = 0;
  decoding.max_tokens = model->max_context() - 100;
  Json rounds = Json::array();
  std::vector<double> ratios, slowdowns;
  for (int i = 0; i < kRounds; ++i) {
    const Round round = measure(engine, prompt, decoding);
    ratios.push_back(round.ratio(0.99));
    slowdowns.push_back(round.beside_seconds / round.alone_seconds);
    rounds.push_back({{"prefill_seconds_alone", round.alone_seconds},
                      {"prefill_seconds_beside", round.beside_seconds},
                      {"token_ms_p50_alone", percentile(round.quiet, 0.5)},
                      {"token_ms_p99_alone", percentile(round.quiet, 0.99)},
                      {"token_ms_p50_beside", percentile(round.beside, 0.5)},
                      {"token_ms_p99_beside", percentile(round.beside, 0.99)},
                      {"steps_beside", round.beside.size()},
                      {"p50_ratio", round.ratio(0.5)},
                      {"p99_ratio", round.ratio(0.99)}});
    if (options.json) continue;
    write_output(fmt::format(
        "decoding alone {:.2f} ms a token (p99 {:.2f}), beside a prompt of {} tokens {:.2f} ms "
        "({:.2f} times; p99 {:.2f}, {:.2f} times; {} steps); the prompt's first token after "
        "{:.1f} s, alone {:.1f} s\n",
        percentile(round.quiet, 0.5), percentile(round.quiet, 0.99), prompt_tokens,
        percentile(round.beside, 0.5), round.ratio(0.5), percentile(round.beside, 0.99),
        round.ratio(0.99), round.beside.size(), round.beside_seconds, round.alone_seconds));
  }
  if (!options.json)
    write_output(fmt::format("median of {} rounds: p99 {:.2f} times, the prompt {:.1f} times\n",
                             kRounds, median(ratios), median(slowdowns)));
  return {{"prompt_tokens", prompt_tokens},
          {"rounds", rounds},
          {"p99_ratio", median(ratios)},
          {"prefill_ratio", median(slowdowns)}};
}

}  // namespace peregrine
