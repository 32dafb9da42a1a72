// Random lives of the engine against the oracle device: arrivals, lengths, cancels, stops, page
// shortages, preemptions, prefix reuse and drafts. Every sequence's tokens equal those of running
// it alone, everything a row sees is its own, no page leaks, nothing hangs.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <condition_variable>
#include <cstdlib>
#include <map>
#include <random>
#include <thread>

#include "cache/prefix_cache.h"
#include "engine/engine_loop.h"
#include "engine/oracle_device.h"
#include "engine/tiny.h"

namespace peregrine::test {
namespace {

struct Life {
  Life(const EngineOptions& wanted, int rows_per_page, double step_us)
      : config(oracle_config()),
        backend(make_backend("reference", config, Numerics::kF32)),
        options(wanted),
        state(*backend, config,
              {.slots = options.max_running + 2,
               .max_context = options.context_tokens,
               .page_budget_bytes = static_cast<int64_t>(options.kv_bytes),
               .slack = 64,
               .rows_per_page = rows_per_page}),
        cache(state,
              {.mode = options.prefix_cache, .recent_budget_bytes = options.prefix_cache_bytes}),
        scheduler(state, cache,
                  {.max_running = options.max_running,
                   .max_step_tokens = options.max_step_tokens,
                   .context_tokens = options.context_tokens,
                   .window = config.window_size,
                   .prefill = options.prefill,
                   .drafts = true}),
        device(state, step_us),
        loop(device, scheduler, cache, state, options) {}

  ModelConfig config;
  std::unique_ptr<Backend> backend;
  EngineOptions options;
  StateStore state;
  PrefixCache cache;
  Scheduler scheduler;
  OracleDevice device;
  EngineLoop loop;
};

std::vector<int32_t> alone(const Request& r, int context) {
  std::vector<int32_t> tokens = r.prompt, out;
  uint64_t hash = hash_of(tokens, static_cast<int64_t>(tokens.size()));
  while (static_cast<int>(out.size()) < r.max_tokens &&
         static_cast<int>(r.prompt.size() + out.size()) < context) {
    const int32_t token = oracle_token(hash, *r.sampling.seed);
    out.push_back(token);
    hash = extend_hash(hash, token);
    if (token == kOracleStop) break;
  }
  return out;
}

struct Track {
  Request request;
  std::vector<int32_t> tokens;
  bool finished = false;
  EndReason reason = EndReason::kStop;
  size_t cut = 0;  // accept() ends the request after this many tokens; 0: never
};

void live(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  EngineOptions options;
  options.max_running = pick(1, 5);
  options.max_waiting = 1000;
  options.max_step_tokens = pick(17, 160);  // chunks longer than the rings' slack too
  options.context_tokens = 160;
  options.prefill = pick(0, 1) ? PrefillMode::kExact : PrefillMode::kReplay;
  options.prefix_cache = static_cast<PrefixCacheMode>(pick(0, 2));
  options.prefix_cache_bytes = static_cast<uint64_t>(pick(1, 200)) * 1000;
  options.overlap = pick(0, 3) > 0;
  const int rows_per_page = pick(1, 3) * 4;
  const ModelConfig config = oracle_config();
  const uint64_t page_bytes =
      static_cast<uint64_t>(rows_per_page) * (32 / 2 + 32 / 16 + 32 / 2 + 32 / 32);
  // From barely one sequence to plenty.
  const int64_t one = 160 / rows_per_page + 80 / rows_per_page + 2;
  options.kv_bytes = page_bytes * static_cast<uint64_t>(one + pick(0, 3) * pick(0, 40));
  // Outlived by nothing: the engine's callbacks refer to these until it is gone.
  std::mutex mutex;
  std::condition_variable changed;
  std::map<RequestId, Track> tracks;
  int ended = 0;
  bool event_after_end = false;
  Life life(options, rows_per_page, pick(0, 2) == 0 ? 20 : 0);
  const int requests = pick(1, 14);
  std::vector<std::vector<int32_t>> seen;  // conversations to continue or repeat
  std::vector<RequestId> cancel_later;
  for (int i = 0; i < requests; ++i) {
    Track track;
    Request& r = track.request;
    if (!seen.empty() && pick(0, 1))
      r.prompt = seen[static_cast<size_t>(pick(0, static_cast<int>(seen.size()) - 1))];
    const int extra = pick(r.prompt.empty() ? 1 : 0, 60);
    for (int t = 0; t < extra; ++t) r.prompt.push_back(pick(2, kOracleVocab - 1));
    if (r.prompt.size() > 120) r.prompt.resize(120);
    seen.push_back(r.prompt);
    r.sampling.seed = random();
    r.max_tokens = pick(1, 50);
    r.stop_ids = {kOracleStop};
    r.priority = pick(0, 5) == 0 ? pick(-1, 1) : 0;
    if (const int drafts = pick(0, 5)) r.draft = {.mode = DraftMode::kFixed, .drafts = drafts};
    if (pick(0, 5) == 0) track.cut = static_cast<size_t>(pick(1, 30));
    const auto id = static_cast<RequestId>(i + 1);
    {
      const std::lock_guard lock(mutex);
      tracks[id] = track;
    }
    auto s = std::make_unique<Sequence>();
    s->id = id;
    s->submit_us = now_us();
    s->seed = *r.sampling.seed;
    s->tokens = r.prompt;
    s->request = r;
    if (track.cut > 0)
      s->request.accept = [cut = track.cut,
                           count = size_t{0}](std::span<const int32_t> tokens) mutable {
        const size_t take = std::min(tokens.size(), cut - count);
        count += take;
        return take;
      };
    s->on_event = [&, id](const Event& event) {
      const std::lock_guard lock(mutex);
      Track& t = tracks[id];
      event_after_end = event_after_end || t.finished;
      t.tokens.insert(t.tokens.end(), event.tokens.begin(), event.tokens.end());
      if (!event.finished) return;
      t.finished = true;
      t.reason = event.reason;
      ++ended;
      changed.notify_all();
    };
    life.loop.submit(std::move(s));
    if (pick(0, 4) == 0) cancel_later.push_back(id);
    if (pick(0, 3) == 0) std::this_thread::sleep_for(std::chrono::microseconds(pick(0, 800)));
    if (!cancel_later.empty() && pick(0, 2) == 0) {
      life.loop.cancel(cancel_later.back());
      cancel_later.pop_back();
    }
  }
  for (const RequestId id : cancel_later) life.loop.cancel(id);
  {
    std::unique_lock lock(mutex);
    // Far beyond what a scenario takes; a hang must fail, not block the suite.
    RC_ASSERT(changed.wait_for(lock, std::chrono::seconds(60), [&] { return ended == requests; }));
  }
  std::string broken;
  life.loop.between_steps([&] {
    life.scheduler.release_until(INT64_MAX);
    broken = life.scheduler.check_integrity();
    if (broken.empty()) {
      life.cache.clear();
      if (life.state.pool().used_pages() != 0) broken = "pages leaked";
    }
  });
  RC_ASSERT(!event_after_end);
  RC_ASSERT(broken == std::string());
  RC_ASSERT(life.device.problem() == std::string());
  for (const auto& [id, t] : tracks) {
    auto want = alone(t.request, options.context_tokens);
    if (t.cut > 0 && want.size() > t.cut) want.resize(t.cut);
    if (t.reason == EndReason::kCancelled) {
      RC_ASSERT(t.tokens.size() <= want.size());
      want.resize(t.tokens.size());
    }
    RC_ASSERT(t.tokens == want);
  }
}

// How many lives: a few hundred with every run of the suite; PEREGRINE_SCENARIOS for the long
// check.
int scenarios() {
  const char* wanted = std::getenv("PEREGRINE_SCENARIOS");
  return wanted ? std::atoi(wanted) : reduced(300, 3);
}

RC_GTEST_PROP(EngineProperty, EveryLifeEqualsItsOracle, ()) {
  // RapidCheck draws 100 seeds a property; each stands for several lives.
  const auto seed = *rc::gen::arbitrary<uint32_t>();
  for (int i = 0; i < std::max(1, scenarios() / 100); ++i)
    live(uint64_t{seed} * 1000 + static_cast<uint64_t>(i));
}

}  // namespace
}  // namespace peregrine::test
