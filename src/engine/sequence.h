// One request being generated, as the host sees it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/state_pages.h"
#include "engine/step_plan.h"
#include "peregrine/engine.h"

namespace peregrine {

enum class SequenceState : uint8_t { kWaiting, kPrefilling, kRunning, kFinished };

struct Sequence {
  RequestId id = 0;
  Request request;
  std::function<void(const Event&)> on_event;
  uint64_t seed = 0;
  double submit_us = 0;
  double deadline_us = 0;  // 0: none

  SequenceState state = SequenceState::kWaiting;
  uint32_t generation = 0;  // stays in a slot so far
  int slot = -1;

  std::vector<int32_t> tokens;  // the prompt and every token emitted
  // Positions whose results are known to the host; while decoding all tokens but the last.
  int64_t computed = 0;

  // This stay's prefill: positions prefill_from .. prefill_to - 1, of which `planned` are
  // submitted.
  int64_t prefill_from = 0;  // first position that runs, replayed ones included
  int64_t prefill_to = 0;
  int64_t planned = 0;
  int64_t window_floor = 0;   // encoder replay
  int64_t write_floor = 0;    // prefix hit
  int64_t decoder_start = 0;  // first position whose decoder rows run
  int64_t decoder_floor = 0;  // below it this stay's decoder rings hold nothing
  bool exact = true;          // no encoder replay behind any of its rows

  // The request's state from elsewhere, until a stay begins with it; then what of its pages the
  // slot has still to be given.
  std::optional<StatePages> import;
  bool imported = false;  // this stay began with it

  // Work submitted whose results are not known: steps, and the most positions they can add.
  int inflight_steps = 0;
  int64_t inflight_tokens = 0;
  int64_t last_step = -1;  // step of its last group
  int last_group = -1;     // its index there

  Usage usage;
  bool saw_first_token = false;

  int64_t prompt_length() const { return static_cast<int64_t>(request.prompt.size()); }
  int64_t output_length() const { return static_cast<int64_t>(tokens.size()) - prompt_length(); }
  // Every step in flight emits at least one token: enough of them and no further row is needed.
  bool will_finish() const {
    const int64_t sure = output_length() + inflight_steps;
    return state == SequenceState::kRunning && sure >= request.max_tokens;
  }
  // Earlier arrival and higher priority run first.
  bool before(const Sequence& other) const {
    if (request.priority != other.request.priority)
      return request.priority > other.request.priority;
    return id < other.id;
  }
};

}  // namespace peregrine
