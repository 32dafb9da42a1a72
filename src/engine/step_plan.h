// One step between host and device: the plan, and what comes back (spec: scheduler.md, names as
// there).
//
// A StepState is written by the host before submission, by the device while the step runs and read
// by the host after its event; it outlives its submission in a fixed ring.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/state_store.h"
#include "peregrine/generation.h"

namespace peregrine {

// What the device must know of a sequence for one stay in a slot. Immutable once submitted.
struct SequenceSetup {
  std::vector<int32_t>
      tokens;                 // to prefill: the prompt, or after a preemption all processed tokens
  int64_t prompt_length = 0;  // of the request
  int64_t max_tokens = 0;     // of the request
  int64_t context_tokens = 0;
  // After a preemption: the token that was sampled but not yet processed. Nothing is sampled at the
  // end of the prefill then.
  std::optional<int32_t> anchor;
  SamplingParams sampling;
  uint64_t seed = 0;
  DraftOptions draft;
};

enum class GroupKind : uint8_t { kPrefill, kDecode };

// The rows of one sequence in a step.
struct RowGroup {
  GroupKind kind = GroupKind::kDecode;
  int slot = 0;
  uint64_t sequence = 0;    // RequestId
  uint32_t generation = 0;  // stays in a slot so far; results of an earlier stay are discarded

  // Set with the first group of a stay.
  std::shared_ptr<const SequenceSetup> setup;

  // kPrefill: positions start .. start + count - 1 (see Segment for the floors).
  int64_t start = 0;
  int count = 0;
  bool last = false;  // ends the prefill: the first token is sampled (or the anchor set)
  int64_t window_floor = 0;
  int64_t write_floor = 0;
  int64_t decoder_start = 0;
  int64_t decoder_floor = 0;

  // kDecode: at most max_rows rows, the anchor and max_rows - 1 drafts.
  int max_rows = 1;
  // Group of the sequence in the step submitted just before, whose results the host has not seen:
  // the device takes the anchor, the length and the drafts from there. -1: not in that step.
  int remap = -1;
};

struct StepPlan {
  std::vector<RowGroup> groups;
  std::vector<PageUpdate> page_updates;
  int draft_row_budget = 0;  // draft rows over the whole batch; 0: no cap

  void clear() {
    groups.clear();
    page_updates.clear();
    draft_row_budget = 0;
  }
};

struct GroupOutput {
  int first_token = 0;  // into StepOutput::tokens
  int tokens = 0;       // accepted drafts and the token after them, or the first token
  int drafted = 0;      // slots filled for the next step
  int verified = 0;
  int accepted = 0;
};

struct StepOutput {
  std::vector<GroupOutput> groups;  // one a group of the plan
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs>
      logprobs;  // parallel to tokens where a sequence asked, else empty entries
  bool any_logprobs = false;
  int rows = 0;

  void clear() {
    groups.clear();
    tokens.clear();
    logprobs.clear();
    any_logprobs = false;
    rows = 0;
  }
};

struct StepState {
  int64_t number = -1;
  StepPlan plan;
  StepOutput output;
  std::string error;  // set when the step could not run; outputs are then empty
  // Microseconds on the steady clock, from the device.
  double device_begin_us = 0, device_end_us = 0;
  // From the host, for traces.
  double submit_us = 0;
};

}  // namespace peregrine
