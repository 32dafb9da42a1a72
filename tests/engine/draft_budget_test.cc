// The draft row budget of a loaded engine: no step verifies more drafts than it allows, and what
// comes out is what runs alone give.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "cache/prefix_cache.h"
#include "engine/engine_loop.h"
#include "engine/model_device.h"
#include "engine/tiny_generation.h"

namespace peregrine::test {
namespace {

constexpr int kSequences = 6;
constexpr int kDrafts = 5;
constexpr int kBudget = 7;
constexpr int kContext = 256;  // tokens
constexpr int kAnswer = 40;    // tokens

// The model's device, which also notes how many drafts its steps verified.
class WatchedDevice : public ModelDevice {
 public:
  using ModelDevice::ModelDevice;
  ~WatchedDevice() override { stop(); }

  int most_verified() const { return most_verified_; }
  int full_steps() const { return full_steps_; }

 private:
  void run(StepState& state, const StepState* previous) override {
    ModelDevice::run(state, previous);
    int verified = 0;
    for (const GroupOutput& out : state.output.groups) verified += out.verified;
    most_verified_ = std::max<int>(most_verified_, verified);
    full_steps_ += verified == kBudget;
  }

  std::atomic<int> most_verified_ = 0, full_steps_ = 0;
};

struct Outcome {
  Ids tokens;
  std::vector<TokenLogprobs> logprobs;
};

TEST(DraftRowBudget, HoldsUnderLoadWithTheSameBits) {
  const auto model = tiny_model();
  const ModelConfig& config = model->impl().config();
  EngineOptions options;
  options.max_running = kSequences;
  options.max_step_tokens = 128;
  options.context_tokens = kContext;
  options.draft_row_budget = kBudget;
  options.prefill = PrefillMode::kExact;
  options.prefix_cache = PrefixCacheMode::kOff;
  StateStore state(
      *model->impl().backend, config,
      {.slots = kSequences + 2, .max_context = kContext, .page_budget_bytes = 0, .slack = 64});
  PrefixCache cache(state, {.mode = PrefixCacheMode::kOff});
  Scheduler scheduler(state, cache,
                      {.max_running = options.max_running,
                       .max_step_tokens = options.max_step_tokens,
                       .context_tokens = options.context_tokens,
                       .draft_row_budget = options.draft_row_budget,
                       .window = config.window_size,
                       .prefill = options.prefill,
                       .drafts = true});
  WatchedDevice device(model, state, {.max_rows = options.max_step_tokens, .drafts = true});

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Outcome> outcomes(kSequences);
  int ended = 0;
  std::vector<Request> requests;
  std::mt19937 random(9);
  for (int i = 0; i < kSequences; ++i) {
    Request request{.prompt = chat_ids(kDomains[i], random), .max_tokens = kAnswer};
    request.sampling.temperature = 0;
    request.sampling.logprobs = 2;
    request.draft = fixed_drafts(kDrafts, 0);
    request.prompt.resize(std::min<size_t>(request.prompt.size(), kContext - kAnswer));
    requests.push_back(std::move(request));
  }
  {
    EngineLoop loop(device, scheduler, cache, state, options);
    for (size_t i = 0; i < kSequences; ++i) {
      auto s = std::make_unique<Sequence>();
      s->id = i + 1;
      s->submit_us = now_us();
      s->tokens = requests[i].prompt;
      s->request = requests[i];
      s->on_event = [&, i](const Event& event) {
        const std::lock_guard lock(mutex);
        Outcome& out = outcomes[i];
        out.tokens.insert(out.tokens.end(), event.tokens.begin(), event.tokens.end());
        out.logprobs.insert(out.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
        ended += event.finished;
        changed.notify_all();
      };
      loop.submit(std::move(s));
    }
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return ended == kSequences; });
  }
  EXPECT_LE(device.most_verified(), kBudget);
  EXPECT_GT(device.full_steps(), 0) << "the budget never mattered";
  for (size_t i = 0; i < kSequences; ++i) {
    Session session(model, {.prefill = PrefillMode::kExact});
    GenerateOptions alone = greedy(kAnswer);
    alone.stop_ids = {};
    alone.sampling.logprobs = 2;
    alone.masked_ids = model->impl().tokenizer.masked_ids(model->vocab_size());
    const Generated want = generate(session, requests[i].prompt, alone);
    EXPECT_EQ(outcomes[i].tokens, want.tokens) << i;
    ASSERT_EQ(outcomes[i].logprobs.size(), want.logprobs.size()) << i;
    // Functions of the logits' bits.
    for (size_t t = 0; t < want.logprobs.size(); ++t)
      EXPECT_EQ(outcomes[i].logprobs[t].chosen.logprob, want.logprobs[t].chosen.logprob)
          << i << " token " << t;
  }
}

}  // namespace
}  // namespace peregrine::test
