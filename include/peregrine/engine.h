// Many sequences at once: batching, speculation and prefix reuse behind submit().
//
//   peregrine::Engine engine(model, {});
//   engine.submit({.prompt = ids, .max_tokens = 100}, [](const peregrine::Event& e) { ... });
//
// Thread-safe. Events of a request arrive in order on the engine's own thread; a callback must not
// block and must not call back into the engine except submit() and cancel(). While an engine has
// work, nothing else may run on its model: sessions of the same Model share its device.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "peregrine/generation.h"
#include "peregrine/model.h"
#include "peregrine/session.h"

namespace peregrine {

using RequestId = uint64_t;
struct SavedState;  // src/engine/saved_state.h
struct StateShape;

struct Request {
  std::vector<int32_t> prompt;  // not empty
  SamplingParams sampling;
  int max_tokens = 16;
  std::vector<int32_t> stop_ids;  // end the output; the stop token is part of it
  DraftOptions draft;             // ignored where the model has no drafter
  int priority = 0;               // higher runs first; equal: order of arrival
  double deadline_seconds = 0;    // from submit; 0: none

  // Asked, on the engine's thread, for every run of new tokens: how many of them belong to the
  // output. Fewer than given ends the request there (a stop string, a closed tool call).
  std::function<size_t(std::span<const int32_t> tokens)> accept;

  // The state of a leading part of the prompt, computed elsewhere: used where it saves more than
  // what this engine has cached, then let go. Has to fit Engine::state_shape().
  std::shared_ptr<const SavedState> state;
  // Given the request's state once it has ended with one that is worth keeping: after its last
  // event, on a thread that may work on it for a while. Not called for the others.
  std::function<void(std::shared_ptr<const SavedState>)> on_state;
};

enum class EndReason {
  kStop,    // a stop id, or accept() said so
  kLength,  // max_tokens or the context is full
  kCancelled,
  kDeadline,
  kError,
};

// What a request did; complete with its last event.
struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, not computed again
  int64_t output_tokens = 0;
  int64_t steps = 0;
  int64_t drafted = 0, verified = 0, accepted = 0;
  std::array<int64_t, kMaxDrafts> verified_at{}, accepted_at{};
  double queue_seconds = 0;  // submit to first step
  double ttft_seconds = 0;   // submit to first token
  double total_seconds = 0;
  int64_t preemptions = 0;

  double average_accept_length() const {
    return steps == 0 ? 0 : static_cast<double>(accepted + steps) / static_cast<double>(steps);
  }
  double average_iteration_ms() const {
    return steps == 0 ? 0 : (total_seconds - ttft_seconds) * 1000 / static_cast<double>(steps);
  }
};

struct Event {
  RequestId id = 0;
  std::span<const int32_t> tokens;          // new ones; valid during the callback
  std::span<const TokenLogprobs> logprobs;  // one a token when asked for
  bool finished = false;
  EndReason reason = EndReason::kStop;  // when finished
  std::string error;                    // with kError: one sentence
  const Usage* usage = nullptr;         // so far; complete when finished
};

enum class PrefixCacheMode {
  kOff,
  kExact,   // reuse saved states only: results never depend on what was cached
  kReplay,  // reuse any common prefix; the last window is replayed (approximate, as the report
            // does)
};

struct EngineOptions {
  int max_running = 16;      // sequences in the batch
  int max_waiting = 1024;    // beyond: submit() throws kUnavailable
  int max_step_tokens = 0;   // rows of a step; 0: by activation memory
  int context_tokens = 0;    // longest sequence; 0: the model's
  uint64_t kv_bytes = 0;     // packed KV pages; 0: a quarter of free memory
  int draft_row_budget = 0;  // drafts verified in a step, but for seeded sampling; 0: no cap
  PrefillMode prefill = PrefillMode::kReplay;
  PrefixCacheMode prefix_cache = PrefixCacheMode::kReplay;
  uint64_t prefix_cache_bytes = 0;  // saved states in host memory; 0: 256 MB
  std::string prefix_spill_dir;     // saved states move here before they are dropped; empty: off
  uint64_t prefix_spill_bytes = uint64_t{4} << 30;
  bool overlap = true;     // plan the next step while the device runs; same results either way
  std::string trace_file;  // Chrome trace of host and device
};

struct EngineStats {
  int running = 0, waiting = 0, prefilling = 0;
  int64_t steps = 0, prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  int64_t requests = 0, finished = 0, cancelled = 0, failed = 0, preemptions = 0;
  int64_t verified = 0, accepted = 0;
  std::array<int64_t, kMaxDrafts> verified_at{}, accepted_at{};
  int64_t pages_total = 0, pages_used = 0, pages_cached = 0;
  double device_busy_seconds = 0;  // inside steps
  double device_idle_seconds = 0;  // between steps while there was work
  double host_seconds = 0;         // planning and post-processing
  double last_step_ms = 0;

  // Sums; of last_step_ms the longer one.
  void add(const EngineStats& other);
};

class StepGroup;

class Engine {
 public:
  // Throws Error(kInvalidArgument) or Error(kOutOfMemory).
  // `group`: how this engine agrees on steps with those of other ranks (engine/step_group.h); it
  // must outlive the engine, whose end then waits until all ranks have nothing left to run.
  Engine(std::shared_ptr<const Model> model, const EngineOptions& options,
         StepGroup* group = nullptr);
  ~Engine();  // cancels what still runs and flushes

  // Throws Error(kInvalidArgument) naming what is wrong with the request (a prompt that can never
  // fit, ids or parameters out of range), Error(kUnavailable) when the queue is full or the engine
  // is shutting down.
  RequestId submit(Request request, std::function<void(const Event&)> on_event);
  // The request ends with kCancelled unless it has ended already. What it computed stays cached.
  void cancel(RequestId id);

  // Refuses new requests; returns when all others have ended, or cancels them after `seconds`.
  void drain(double seconds);

  EngineStats stats() const;  // with those of other ranks that this engine gives requests to
  std::vector<EngineStats> stats_by_rank() const;  // this engine's first
  const EngineOptions& options() const;            // defaults filled in
  const Model& model() const;
  const StateShape& state_shape() const;

  // How many leading tokens of a prompt this engine would not compute now. Waits for the engine's
  // thread, at most about a step; not for callbacks.
  int64_t cached_tokens(std::span<const int32_t> prompt);

  // Walks all books: every page owned once or shared with a count, nothing leaked. Returns an empty
  // string or a sentence. Waits for the engine to be between steps.
  std::string check_integrity();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace peregrine
