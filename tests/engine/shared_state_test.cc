// States that leave one engine and continue in another: the same bits as in one that did it all.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "engine/saved_state.h"
#include "engine/tiny.h"
#include "peregrine/engine.h"
#include "support/leading_part.h"

namespace peregrine::test {
namespace {

using StatePointer = std::shared_ptr<const SavedState>;

struct Outcome {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  Usage usage;
  EndReason reason = EndReason::kStop;
  StatePointer state;
};

EngineOptions options_for(PrefixCacheMode cache, PrefillMode prefill) {
  return {.max_running = 4,
          .context_tokens = 2048,
          .kv_bytes = 32 << 20,
          .prefill = prefill,
          .prefix_cache = cache};
}

Request request_for(Ids prompt, int max_tokens = 24) {
  Request r{.prompt = std::move(prompt)};
  r.sampling.temperature = 0.8;
  r.sampling.seed = 3;
  r.sampling.logprobs = 0;
  r.max_tokens = max_tokens;
  r.draft = {.mode = DraftMode::kFixed, .drafts = 3};
  return r;
}

// Runs one request to its end and, if wanted, waits for its state.
Outcome run(Engine& engine, Request request, bool wants_state) {
  Outcome out;
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
  if (wants_state) {
    request.on_state = [&](StatePointer state) {
      const std::lock_guard lock(mutex);
      out.state = std::move(state);
      changed.notify_all();
    };
  }
  engine.submit(std::move(request), [&](const Event& event) {
    const std::lock_guard lock(mutex);
    out.tokens.insert(out.tokens.end(), event.tokens.begin(), event.tokens.end());
    for (const TokenLogprobs& l : event.logprobs) out.logprobs.push_back(l.chosen.logprob);
    if (!event.finished) return;
    out.usage = *event.usage;
    out.reason = event.reason;
    ended = true;
    changed.notify_all();
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return ended && (!wants_state || out.state); });
  return out;
}

void append(Ids& to, const Ids& more) { to.insert(to.end(), more.begin(), more.end()); }

class SharedState : public ::testing::TestWithParam<std::tuple<PrefixCacheMode, PrefillMode>> {};
INSTANTIATE_TEST_SUITE_P(Modes, SharedState,
                         ::testing::Values(std::tuple(PrefixCacheMode::kExact, PrefillMode::kExact),
                                           std::tuple(PrefixCacheMode::kReplay,
                                                      PrefillMode::kReplay)));

TEST_P(SharedState, TurnsOnTwoEnginesEqualThoseOnOne) {
  const auto [cache, prefill] = GetParam();
  Engine alone(tiny_model(), options_for(cache, prefill));
  Engine first(tiny_model(), options_for(cache, prefill));
  Engine second(tiny_model(), options_for(cache, prefill));
  Ids prompt = random_tokens(150, 1);
  StatePointer state;
  for (int turn = 0; turn < 5; ++turn) {
    const Outcome expected = run(alone, request_for(prompt), false);
    Engine& engine = turn % 2 == 0 ? first : second;
    Request request = request_for(prompt);
    request.state = state;
    const Outcome got = run(engine, std::move(request), true);
    EXPECT_EQ(got.tokens, expected.tokens) << "turn " << turn;
    EXPECT_EQ(got.logprobs, expected.logprobs) << "turn " << turn;
    EXPECT_EQ(got.usage.cached_tokens, expected.usage.cached_tokens) << "turn " << turn;
    if (turn > 0) {
      EXPECT_EQ(got.usage.cached_tokens, state->length());
    }
    state = got.state;
    append(prompt, got.tokens);
    EXPECT_EQ(misfit(*state, engine.state_shape()), "");
    EXPECT_EQ(state->tokens, Ids(prompt.begin(), prompt.end() - 1)) << "all but the last token";
    EXPECT_FALSE(state->recent.empty());
    EXPECT_EQ(first.check_integrity() + second.check_integrity(), "");
    append(prompt, random_tokens(turn == 2 ? 300 : 20, 50 + static_cast<uint32_t>(turn)));
  }
}

TEST(SharedState, CommonPartOfAnotherPromptIsReplayed) {
  const EngineOptions options = options_for(PrefixCacheMode::kReplay, PrefillMode::kReplay);
  Engine source(tiny_model(), options), target(tiny_model(), options), local(tiny_model(), options);
  Ids prompt = random_tokens(200, 2);
  const StatePointer state = run(source, request_for(prompt), true).state;
  run(local, request_for(prompt), false);
  prompt.resize(170);
  append(prompt, random_tokens(30, 9));
  Request request = request_for(prompt);
  request.state = state;
  const Outcome got = run(target, request, true);
  EXPECT_EQ(got.usage.cached_tokens, 170);
  EXPECT_FALSE(got.state->exact);
  const Outcome expected = run(local, request_for(prompt), false);
  EXPECT_EQ(expected.usage.cached_tokens, 170);
  EXPECT_EQ(got.tokens, expected.tokens);
  EXPECT_EQ(got.logprobs, expected.logprobs);
  // Only that part of the state, as a fetch of what the prefix needs gives it.
  Engine again(tiny_model(), options);
  request = request_for(prompt);
  request.state = std::make_shared<SavedState>(leading_part(*state, target.state_shape(), 170));
  EXPECT_EQ(run(again, request, false).logprobs, expected.logprobs);
  // Exact mode takes whole states only.
  Engine exact(tiny_model(), options_for(PrefixCacheMode::kExact, PrefillMode::kReplay));
  request = request_for(prompt);
  request.state = state;
  EXPECT_EQ(run(exact, request, false).usage.cached_tokens, 0);
}

TEST(SharedState, ThatDoesNotFitIsRefused) {
  Engine engine(tiny_model(), options_for(PrefixCacheMode::kReplay, PrefillMode::kReplay));
  const Ids prompt = random_tokens(150, 4);
  SavedState state = *run(engine, request_for(prompt), true).state;
  state.sources[0].main.pop_back();
  Request request = request_for(prompt);
  request.state = std::make_shared<SavedState>(state);
  expect_refusal(ErrorKind::kInvalidArgument,
                 "a state from elsewhere does not fit: ", [&] { engine.submit(request, {}); });
}

// Requests with states come, are cancelled and preempted on a pool that is too small for all.
TEST(SharedState, CrowdOnFewPagesKeepsTheBooks) {
  EngineOptions options = options_for(PrefixCacheMode::kReplay, PrefillMode::kReplay);
  Engine source(tiny_model(), options);
  options.kv_bytes = 600 << 10;
  options.context_tokens = 512;
  Engine small(tiny_model(), options);
  constexpr int kTalks = 6;
  std::vector<Ids> prompts;
  std::vector<StatePointer> states;
  std::vector<Outcome> expected;
  for (int i = 0; i < kTalks; ++i) {
    Ids prompt = random_tokens(250, 20 + static_cast<uint32_t>(i));
    const Outcome first = run(source, request_for(prompt), true);
    append(prompt, first.tokens);
    append(prompt, random_tokens(5, 90));
    states.push_back(first.state);
    expected.push_back(run(source, request_for(prompt), false));
    prompts.push_back(std::move(prompt));
  }
  std::mutex mutex;
  std::condition_variable changed;
  int running = 0, saved = 0;
  for (int i = 0; i < 5 * kTalks; ++i) {
    const auto talk = static_cast<size_t>(i % kTalks);
    Request request = request_for(prompts[talk]);
    request.state = states[talk];
    request.on_state = [&](StatePointer state) {
      EXPECT_EQ(misfit(*state, small.state_shape()), "");
      const std::lock_guard lock(mutex);
      ++saved;
    };
    {
      const std::lock_guard lock(mutex);
      ++running;
    }
    auto tokens = std::make_shared<Ids>();
    const RequestId id = small.submit(std::move(request), [&, tokens, talk](const Event& event) {
      tokens->insert(tokens->end(), event.tokens.begin(), event.tokens.end());
      if (!event.finished) return;
      if (event.reason == EndReason::kLength) {
        EXPECT_EQ(*tokens, expected[talk].tokens);
      }
      const std::lock_guard lock(mutex);
      --running;
      changed.notify_all();
    });
    if (i % 4 == 3) small.cancel(id);
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return running == 0; });
  lock.unlock();
  EXPECT_EQ(small.check_integrity(), "");
  lock.lock();
  EXPECT_GT(saved, 0);
}

}  // namespace
}  // namespace peregrine::test
