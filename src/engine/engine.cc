#include "peregrine/engine.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "base/fail.h"
#include "cache/prefix_cache.h"
#include "engine/engine_loop.h"
#include "engine/model_device.h"
#include "engine/state_pages.h"
#include "engine/state_saver.h"
#include "engine/state_shape.h"
#include "model/workspace.h"
#include "sampling/params.h"

namespace peregrine {
namespace {

constexpr uint64_t kActivationBudget = uint64_t{40} << 20;
// Positions in flight (two steps of a full block each) must not overwrite what a saved state needs.
constexpr int kEngineSlack = 64;
static_assert(kEngineSlack >= 2 * (kMaxDrafts + 1) + 2);

uint64_t free_memory() {
  struct sysinfo info {};
  return sysinfo(&info) == 0 ? static_cast<uint64_t>(info.freeram) * info.mem_unit
                             : uint64_t{1} << 30;
}

EngineOptions fill_defaults(const Model& model, EngineOptions o) {
  const ModelConfig& c = model.impl().config();
  const auto positive = [](const char* name, int64_t value) {
    if (value < 1) fail(ErrorKind::kInvalidArgument, "{} is {}, expected at least 1", name, value);
  };
  positive("max_running", o.max_running);
  positive("max_waiting", o.max_waiting);
  if (o.context_tokens == 0) o.context_tokens = c.max_position;
  if (o.context_tokens < 1 || o.context_tokens > c.max_position)
    fail(ErrorKind::kInvalidArgument, "context of {} tokens: this model holds 1 to {}",
         o.context_tokens, c.max_position);
  const int decode_rows = o.max_running * (1 + (c.has_drafter() ? c.dspark_block_size : 0));
  if (o.max_step_tokens == 0) {
    const auto rows = static_cast<int>(kActivationBudget / Workspace::bytes_per_row(c));
    o.max_step_tokens = std::max(std::clamp(rows / 16 * 16, 16, 512), decode_rows + 16);
  }
  if (o.max_step_tokens < 1 + kMaxDrafts)
    fail(ErrorKind::kInvalidArgument, "max_step_tokens is {}, expected at least {}",
         o.max_step_tokens, 1 + kMaxDrafts);
  if (o.kv_bytes == 0) o.kv_bytes = std::max<uint64_t>(free_memory() / 4, uint64_t{64} << 20);
  if (o.prefix_cache_bytes == 0) o.prefix_cache_bytes = uint64_t{256} << 20;
  return o;
}

}  // namespace

class Engine::Impl {
 public:
  Impl(std::shared_ptr<const Model> model, const EngineOptions& wanted, StepGroup* group)
      : model_(std::move(model)),
        options_(fill_defaults(*model_, wanted)),
        state_(*model_->impl().backend, model_->impl().config(),
               {.slots = options_.max_running + 2,  // two more while finished ones are released
                .max_context = options_.context_tokens,
                .page_budget_bytes = static_cast<int64_t>(options_.kv_bytes),
                .slack = kEngineSlack,
                .observer = model_->impl().weights.tensors}),
        cache_(state_, {.mode = options_.prefix_cache,
                        .recent_budget_bytes = options_.prefix_cache_bytes,
                        .spill_dir = options_.prefix_spill_dir,
                        .spill_budget_bytes = options_.prefix_spill_bytes,
                        .fingerprint = model_->impl().fingerprint}),
        shape_(state_shape_of(model_->impl(), state_, options_)),
        saver_(state_, shape_),
        scheduler_(state_, cache_,
                   {.max_running = options_.max_running,
                    .max_step_tokens = options_.max_step_tokens,
                    .context_tokens = options_.context_tokens,
                    .draft_row_budget = options_.draft_row_budget,
                    .window = model_->impl().config().window_size,
                    .prefill = options_.prefill,
                    .drafts = model_->has_drafter(),
                    .replay_imports = options_.prefix_cache == PrefixCacheMode::kReplay},
                   &saver_),
        device_(model_, state_,
                {.max_rows = options_.max_step_tokens, .drafts = model_->has_drafter()}),
        loop_(device_, scheduler_, cache_, state_, options_, group) {}

  RequestId submit(Request request, std::function<void(const Event&)> on_event) {
    check(request);
    auto s = std::make_unique<Sequence>();
    s->id = next_id_.fetch_add(1);
    s->submit_us = now_us();
    if (request.deadline_seconds > 0)
      s->deadline_us = s->submit_us + request.deadline_seconds * 1e6;
    s->seed = request.sampling.seed ? *request.sampling.seed : random_seed();
    if (!model_->has_drafter()) request.draft.mode = DraftMode::kOff;
    if (request.draft.mode == DraftMode::kOff) request.draft.drafts = 0;
    s->tokens = request.prompt;
    if (request.state)
      s->import = cut_into_pages(std::exchange(request.state, nullptr), state_, request.prompt);
    s->request = std::move(request);
    s->on_event = std::move(on_event);
    const RequestId id = s->id;
    loop_.submit(std::move(s));
    return id;
  }

  void check(const Request& r) const {
    const int vocab = model_->vocab_size();
    if (r.prompt.empty())
      fail(ErrorKind::kInvalidArgument, "empty prompt: expected at least one token");
    for (size_t i = 0; i < r.prompt.size(); ++i)
      if (r.prompt[i] < 0 || r.prompt[i] >= vocab)
        fail(ErrorKind::kInvalidArgument, "prompt token {} at position {}: expected 0 to {}",
             r.prompt[i], i, vocab - 1);
    const auto prompt = static_cast<int64_t>(r.prompt.size());
    if (prompt + 1 > options_.context_tokens)
      fail(ErrorKind::kInvalidArgument,
           "a prompt of {} tokens does not fit the context of {} tokens", prompt,
           options_.context_tokens);
    if (r.max_tokens < 1)
      fail(ErrorKind::kInvalidArgument, "max_tokens is {}, expected at least 1", r.max_tokens);
    const int64_t longest =
        std::min<int64_t>(prompt + r.max_tokens + 2 * (kMaxDrafts + 1), options_.context_tokens);
    if (state_.pages_for(longest) > state_.pool().capacity())
      fail(ErrorKind::kInvalidArgument,
           "{} tokens can never fit: the KV cache holds {} pages, they need {}", longest,
           state_.pool().capacity(), state_.pages_for(longest));
    if (r.draft.mode != DraftMode::kOff && (r.draft.drafts < 1 || r.draft.drafts > kMaxDrafts))
      fail(ErrorKind::kInvalidArgument, "draft block of {}: expected 1 to {}", r.draft.drafts,
           kMaxDrafts);
    validate(r.sampling, vocab);
    if (!r.state) return;
    if (const std::string wrong = misfit(*r.state, shape_); !wrong.empty())
      fail(ErrorKind::kInvalidArgument, "a state from elsewhere does not fit: {}", wrong);
  }

  std::shared_ptr<const Model> model_;
  const EngineOptions options_;
  StateStore state_;
  PrefixCache cache_;
  const StateShape shape_;
  StateSaver saver_;
  Scheduler scheduler_;
  ModelDevice device_;
  EngineLoop loop_;
  std::atomic<RequestId> next_id_{1};
};

Engine::Engine(std::shared_ptr<const Model> model, const EngineOptions& options, StepGroup* group)
    : impl_(std::make_unique<Impl>(std::move(model), options, group)) {}
Engine::~Engine() = default;

RequestId Engine::submit(Request request, std::function<void(const Event&)> on_event) {
  return impl_->submit(std::move(request), std::move(on_event));
}
void Engine::cancel(RequestId id) { impl_->loop_.cancel(id); }

void Engine::drain(double seconds) {
  impl_->loop_.close();
  const double end = now_us() + seconds * 1e6;
  while (!impl_->loop_.idle() && now_us() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  impl_->loop_.cancel_all();
  while (!impl_->loop_.idle()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void EngineStats::add(const EngineStats& o) {
  running += o.running, waiting += o.waiting, prefilling += o.prefilling;
  steps += o.steps, prompt_tokens += o.prompt_tokens, cached_tokens += o.cached_tokens;
  output_tokens += o.output_tokens;
  requests += o.requests, finished += o.finished, cancelled += o.cancelled, failed += o.failed;
  preemptions += o.preemptions, verified += o.verified, accepted += o.accepted;
  for (size_t i = 0; i < verified_at.size(); ++i) {
    verified_at[i] += o.verified_at[i];
    accepted_at[i] += o.accepted_at[i];
  }
  pages_total += o.pages_total, pages_used += o.pages_used, pages_cached += o.pages_cached;
  device_busy_seconds += o.device_busy_seconds, device_idle_seconds += o.device_idle_seconds;
  host_seconds += o.host_seconds;
  last_step_ms = std::max(last_step_ms, o.last_step_ms);
}

EngineStats Engine::stats() const {
  EngineStats all;
  for (const EngineStats& stats : stats_by_rank()) all.add(stats);
  return all;
}
std::vector<EngineStats> Engine::stats_by_rank() const { return impl_->loop_.stats_by_rank(); }
const EngineOptions& Engine::options() const { return impl_->options_; }
const Model& Engine::model() const { return *impl_->model_; }
const StateShape& Engine::state_shape() const { return impl_->shape_; }

int64_t Engine::cached_tokens(std::span<const int32_t> prompt) {
  int64_t tokens = 0;
  impl_->loop_.on_loop_thread([&] { tokens = impl_->scheduler_.cached_tokens(prompt); });
  return tokens;
}

std::string Engine::check_integrity() {
  std::string result;
  impl_->loop_.between_steps([&] { result = impl_->scheduler_.check_integrity(); });
  return result;
}

}  // namespace peregrine
