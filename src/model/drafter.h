// The DSpark drafter (spec: dspark.md sections 3 and 4): several draft tokens from one pass.
//
// begin() runs the stages over one block a sequence and leaves base logits for every slot; next()
// adds the Markov head's bias for slot i once the token before it is known, and the confidence of
// that slot. Reads the drafter's rings, which Forward::run writes; writes no state.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "cache/state_store.h"
#include "model/block.h"
#include "model/row_set.h"
#include "model/weights.h"
#include "model/workspace.h"

namespace peregrine {

struct DraftSegment {
  int slot = 0;
  int64_t position = 0;  // of the anchor: one past the last position the backbone has processed
  int32_t anchor = 0;    // the last sure token
  int count = 0;         // draft rows; slot i drafts the token at position + 1 + i
};

class Drafter {
 public:
  // At most `max_rows` draft rows and `max_segments` blocks a call.
  Drafter(Backend& backend, const ModelConfig& config, const Weights& weights, StateStore& state,
          int max_rows, int max_segments);

  void begin(std::span<const DraftSegment> segments);
  // What a rank without segments calls instead: other ranks may have some. One rank: does nothing.
  void join_others();

  // Slot `i` of the segments `active` (indices into begin()'s list, each with count > i), with the
  // token before the slot: the anchor for i = 0, else the draft of slot i - 1.
  void next(int i, std::span<const int> active, std::span<const int32_t> previous);
  Tensor logits() const { return slot_logits_; }     // f32 [active, vocab] of the last next()
  Tensor confidence() const { return confidence_; }  // f32 [active, 1], raw: no sigmoid

  // Stream of stage s after begin(), for tests: called after every stage.
  std::function<void(int stage, Tensor x)> after_stage;

 private:
  Backend& b_;
  const ModelConfig& c_;
  const Weights& w_;
  StateStore& state_;
  Workspace ws_;
  Block block_;
  RowSet rows_;
  std::vector<int> first_row_;  // of each segment
  // One row a segment, for next().
  struct Heads {
    Heads(Backend& backend, const ModelConfig& config, int rows);
    ~Heads();
    Backend& backend;
    Tensor hidden, embedding, bias, logits, confidence;
    int32_t *row_numbers, *tokens;
  } heads_;
  Tensor hidden_, base_logits_;
  Tensor slot_logits_, confidence_;
};

}  // namespace peregrine
