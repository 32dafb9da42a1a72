// bench decode and bench prefill: single steps through Forward, on a checkpoint or on synthetic
// weights.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "base/fail.h"
#include "bench.h"
#include "checkpoint/inventory.h"
#include "engine/model_impl.h"
#include "engine/weight_traffic.h"
#include "model/forward.h"
#include "output.h"
#include "report.h"

namespace peregrine {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDecodeRows[] = {1, 2, 4, 8};
constexpr int kMostRows = 8;
constexpr int kWarmUps = 2;
constexpr uint64_t kSeed = 1;

// Weights on a backend, from either source.
class Target {
 public:
  explicit Target(const BenchOptions& o) {
    if (!o.synthetic) {
      loaded_ = load_model(o.model);
      return;
    }
    made_.emplace();
    made_->config = synthetic_config(o.shape);
    made_->source = make_synthetic_source(made_->config, kSeed);
    made_->backend = make_backend(o.model.device, made_->config, Weights::numerics(*made_->source),
                                  {.threads = o.model.threads});
    made_->weights.emplace(made_->config, *made_->source, *made_->backend);
  }

  const ModelConfig& config() const { return made_ ? made_->config : loaded_->impl().config(); }
  Backend& backend() const { return made_ ? *made_->backend : *loaded_->impl().backend; }
  const Weights& weights() const { return made_ ? *made_->weights : loaded_->impl().weights; }
  const EngramHasher* hasher() const { return made_ ? nullptr : loaded_->impl().engram_hasher(); }
  uint64_t weight_bytes() const {
    return made_ ? made_->source->total_bytes() : loaded_->weight_bytes();
  }

 private:
  struct Made {
    ModelConfig config;
    std::unique_ptr<TensorSource> source;
    std::unique_ptr<Backend> backend;
    std::optional<Weights> weights;
  };
  std::shared_ptr<const Model> loaded_;
  std::optional<Made> made_;
};

// Sequences of pseudo-random tokens and the machinery to run rows of them.
class Rig {
 public:
  Rig(const Target& target, int slots, int context, int max_rows)
      : target_(target),
        state_(target.backend(), target.config(), {.slots = slots, .max_context = context}),
        forward_(target.backend(), target.config(), target.weights(), target.hasher(), state_,
                 max_rows),
        traffic_(target.config(), target.backend()),
        tokens_(static_cast<size_t>(slots)),
        lengths_(static_cast<size_t>(slots)) {
    traffic_.watch(forward_);
    uint64_t state = kSeed;
    for (std::vector<int32_t>& sequence : tokens_) {
      state_.acquire();
      for (int i = 0; i < context; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        sequence.push_back(static_cast<int32_t>((state >> 33) %
                                                static_cast<uint64_t>(target.config().vocab_size)));
      }
    }
  }

  struct Measured {
    double seconds = 0;
    uint64_t bytes = 0;  // of weights
  };
  // Appends `count` tokens to each of the first `slots` sequences in one step.
  Measured append(int slots, int count) {
    Step step;
    for (int slot = 0; slot < slots; ++slot) {
      const int64_t begin = lengths_[static_cast<size_t>(slot)], end = begin + count;
      if (!state_.reserve(slot, end, begin))
        fail(ErrorKind::kOutOfMemory, "KV cache: no free pages for {} tokens", end);
      step.segments.push_back({.slot = slot,
                               .start = begin,
                               .count = count,
                               .tokens = tokens_[static_cast<size_t>(slot)],
                               .decoder_start = begin,
                               .logits = 1});
      lengths_[static_cast<size_t>(slot)] = end;
    }
    traffic_.reset();
    std::vector<SegmentRows> where;
    const auto start = std::chrono::steady_clock::now();
    forward_.run(step, /*with_drafter=*/false, where);
    target_.backend().synchronize();
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    return {passed.count(), traffic_.bytes()};
  }
  void restart(int slot) {
    state_.truncate(slot, 0);
    lengths_[static_cast<size_t>(slot)] = 0;
  }

 private:
  const Target& target_;
  StateStore state_;
  Forward forward_;
  WeightTraffic traffic_;
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<int64_t> lengths_;
};

// Floating-point operations of the matrix products of a prompt, two a multiply-add. Attention over
// cached rows and index scores come on top and are small at this length.
double prefill_flops(const ModelConfig& c, int64_t tokens) {
  double per_token = 0, once = 0;
  for (const KindTotal& total : take_inventory(c).kinds) {
    const auto parameters = static_cast<double>(total.parameters);
    switch (total.kind) {
      case TensorKind::kRoutedExperts:
        per_token += parameters * c.n_activated_experts / c.n_routed_experts;
        break;
      case TensorKind::kHead:
        once += parameters;
        break;
      case TensorKind::kEmbedding:
      case TensorKind::kEngramTables:
      case TensorKind::kDrafter:
      case TensorKind::kVision:
        break;
      default:
        per_token += parameters;
    }
  }
  return 2 * (per_token * static_cast<double>(tokens) + once);
}

}  // namespace

Json bench_decode(const BenchOptions& o) {
  const Target target(o);
  const int steps = o.context_tokens + 4 * (o.repetitions + kWarmUps);
  Rig rig(target, kMostRows, steps, kMostRows * o.context_tokens);
  double bandwidth = read_bandwidth(o.model.threads, target.weight_bytes());
  rig.append(kMostRows, o.context_tokens);

  // Row counts take turns, so that a change of the machine's load meets all of them.
  std::vector<double> seconds[std::size(kDecodeRows)], rates[std::size(kDecodeRows)];
  uint64_t bytes[std::size(kDecodeRows)] = {};
  for (int repetition = -kWarmUps; repetition < o.repetitions; ++repetition) {
    for (size_t i = 0; i < std::size(kDecodeRows); ++i) {
      const Rig::Measured step = rig.append(kDecodeRows[i], 1);
      if (repetition < 0) continue;
      seconds[i].push_back(step.seconds);
      rates[i].push_back(static_cast<double>(step.bytes) / step.seconds);
      bytes[i] += step.bytes / static_cast<uint64_t>(o.repetitions);
    }
  }
  // Twice, before and after: the better one is nearer to the limit.
  bandwidth = std::max(bandwidth, read_bandwidth(o.model.threads, target.weight_bytes()));

  if (!o.json)
    write_output(
        fmt::format("decode, {} tokens before the step, read bandwidth {:.2f} GB/s\n"
                    "{:>5} {:>10} {:>10} {:>14} {:>8} {:>7}\n",
                    o.context_tokens, bandwidth / 1e9, "rows", "ms/step", "tokens/s", "MB weights",
                    "GB/s", "share"));
  Json rows = Json::array();
  for (size_t i = 0; i < std::size(kDecodeRows); ++i) {
    const double step = median(seconds[i]), rate = median(rates[i]);
    rows.push_back({{"rows", kDecodeRows[i]},
                    {"step_ms", step * 1e3},
                    {"tokens_per_second", kDecodeRows[i] / step},
                    {"weight_bytes", bytes[i]},
                    {"weight_bytes_per_second", rate},
                    {"bandwidth_share", rate / bandwidth}});
    if (!o.json)
      write_output(fmt::format("{:>5} {:>10.2f} {:>10.1f} {:>14.1f} {:>8.2f} {:>6.0f}%\n",
                               kDecodeRows[i], step * 1e3, kDecodeRows[i] / step,
                               static_cast<double>(bytes[i]) / 1e6, rate / 1e9,
                               100 * rate / bandwidth));
  }
  return {{"read_bandwidth", bandwidth},
          {"device", target.backend().name()},
          {"context_tokens", o.context_tokens},
          {"repetitions", o.repetitions},
          {"rows", rows}};
}

Json bench_prefill(const BenchOptions& o) {
  const Target target(o);
  Rig rig(target, 1, o.prefill_tokens, o.prefill_tokens);
  const int repetitions = std::max(1, o.repetitions / 5);
  std::vector<double> seconds;
  for (int repetition = -1; repetition < repetitions; ++repetition) {
    const double passed = rig.append(1, o.prefill_tokens).seconds;
    if (repetition >= 0) seconds.push_back(passed);
    rig.restart(0);
  }
  const double time = median(seconds);
  const double flops = prefill_flops(target.config(), o.prefill_tokens);
  if (!o.json)
    write_output(
        fmt::format("prefill, {} tokens in one step: {:.1f} tokens/s, {:.1f} GFLOP at "
                    "{:.1f} GFLOP/s\n",
                    o.prefill_tokens, o.prefill_tokens / time, flops / 1e9, flops / time / 1e9));
  return {{"tokens", o.prefill_tokens},
          {"device", target.backend().name()},
          {"repetitions", repetitions},
          {"seconds", time},
          {"tokens_per_second", o.prefill_tokens / time},
          {"flop", flops},
          {"flop_per_second", flops / time}};
}

}  // namespace peregrine
