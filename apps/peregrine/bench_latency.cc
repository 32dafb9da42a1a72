// bench latency: what a long prompt costs those who are decoding beside it.
#include <fmt/format.h>

#include <algorithm>
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

// Times between the events of a sequence that decodes all the while.
class Listener {
 public:
  void hear() {
    const double now = now_us();
    const std::lock_guard lock(mutex_);
    if (last_ > 0) gaps_.push_back((now - last_) * 1e-3);
    last_ = now;
  }
  std::vector<double> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(gaps_, {});
  }
  size_t count() const {
    const std::lock_guard lock(mutex_);
    return gaps_.size();
  }

 private:
  mutable std::mutex mutex_;
  double last_ = 0;
  std::vector<double> gaps_;  // milliseconds
};

}  // namespace

Json bench_latency(const BenchOptions& options) {
  const auto model = load_model(options.model);
  const int prompt_tokens = std::min(16000, model->max_context() - 64);
  Engine engine(model, {.max_running = 2,
                        .context_tokens = model->max_context(),
                        .prefix_cache = PrefixCacheMode::kOff});
  std::mt19937_64 random(1);
  const auto ids = [&](int count) { return random_prompt(*model, count, random); };
  Listener listener;
  Request decoding{.prompt = ids(32)};
  decoding.sampling.temperature = 0;
  decoding.max_tokens = model->max_context() - 100;
  std::promise<void> stopped;
  const RequestId id = engine.submit(decoding, [&](const Event& event) {
    if (!event.tokens.empty()) listener.hear();
    if (event.finished) stopped.set_value();
  });
  constexpr size_t kQuietSteps = 400;
  while (listener.count() < kQuietSteps) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const auto quiet = listener.take();

  std::promise<void> read;
  Request prompt{.prompt = ids(prompt_tokens)};
  prompt.max_tokens = 1;
  const double begin = now_us();
  engine.submit(prompt, [&](const Event& event) {
    if (event.finished) read.set_value();
  });
  read.get_future().wait();
  const double seconds = (now_us() - begin) * 1e-6;
  const auto beside = listener.take();
  engine.cancel(id);
  stopped.get_future().wait();

  const Json result = {{"prompt_tokens", prompt_tokens},
                       {"prefill_seconds", seconds},
                       {"token_ms_p50_alone", percentile(quiet, 0.5)},
                       {"token_ms_p99_alone", percentile(quiet, 0.99)},
                       {"token_ms_p50_beside", percentile(beside, 0.5)},
                       {"token_ms_p99_beside", percentile(beside, 0.99)},
                       {"steps_beside", beside.size()},
                       {"p99_ratio", percentile(beside, 0.99) / percentile(quiet, 0.99)}};
  if (!options.json)
    write_output(
        fmt::format("decoding alone: {:.2f} ms a token (p99 {:.2f}); beside a prompt of {} tokens "
                    "read in {:.1f} s: {:.2f} ms "
                    "(p99 {:.2f}, {:.2f} times, {} steps)\n",
                    percentile(quiet, 0.5), percentile(quiet, 0.99), prompt_tokens, seconds,
                    percentile(beside, 0.5), percentile(beside, 0.99),
                    percentile(beside, 0.99) / percentile(quiet, 0.99), beside.size()));
  return result;
}

}  // namespace peregrine
