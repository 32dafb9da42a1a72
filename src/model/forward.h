// The forward pass (spec: model.md section 5), written once over the backend interface.
//
// Forward runs steps of any shape: single tokens, chunks, rows of several sequences. The result for
// a row does not depend on how rows are grouped. The last KV source divides the layers: those
// before it are the encoder, it and those after it the decoder (prefill.md section 1).
//
// Forward owns its buffers and is used by one thread; Weights are shared and read-only. After run()
// the outputs are valid until the next call.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "cache/state_store.h"
#include "model/block.h"
#include "model/engram_hash.h"
#include "model/row_set.h"
#include "model/step.h"
#include "model/weights.h"
#include "model/workspace.h"

namespace peregrine {

// Observation points for tests and debugging; a hook may read and overwrite what it is shown.
// after_selection gets the arguments that the selection was made from and has written.
struct ForwardHooks {
  std::function<void(int layer, Tensor x, Tensor pre)> after_layer;
  std::function<void(int layer, const IndexArgs& args)> after_selection;
  std::function<void(int layer, Tensor expert_ids)> after_routing;  // i32 [rows, active]
};

class Forward {
 public:
  // `hasher` may be null without Engram. At most `max_rows` rows a step, in either half.
  Forward(Backend& backend, const ModelConfig& config, const Weights& weights,
          const EngramHasher* hasher, StateStore& state, int max_rows);
  ~Forward();

  // Runs the step's rows and writes their state. Rows of a segment placed by `where`, one entry a
  // segment. `with_drafter`: also write the drafter's rings for the decoder rows.
  void run(const Step& step, bool with_drafter, std::vector<SegmentRows>& where);

  // A step without rows beside other ranks that may have some. Only with Weights::exchange.
  void join_others();

  Tensor logits() const { return logits_; }  // f32 [wanted rows, vocab]
  Tensor taps() const { return taps_; }      // act [decoder rows, targets * dim]

  int max_rows() const { return max_rows_; }
  ForwardHooks hooks;

 private:
  // Steps of up to this many rows are decoding and verification, whose shapes recur.
  static constexpr int kRecordedRows = 16;

  void place_rows(const Step& step, std::vector<SegmentRows>& where);
  void place_exit_rows(const Step& step, const std::vector<SegmentRows>& where);
  void compute(const Step& step, bool with_drafter);
  void enter_decoder(const Step& step);
  void layer(int l, const RowSet& rows, Tensor x, Tensor pre);
  void engram(int l, const RowSet& rows, Tensor x);
  void produce_global(int l, const StepRows& step);
  void select(int l, const StepRows& step);
  void attention(int l, const StepRows& step);
  void exit(Tensor x, Tensor pre);
  void write_drafter_rings(const StepRows& step);

  Backend& b_;
  const ModelConfig& c_;
  const Weights& w_;
  const EngramHasher* hasher_;
  StateStore& state_;
  int max_rows_;
  Workspace ws_;
  Block block_;
  RowSet encoder_rows_, decoder_rows_;
  bool one_row_set_ = true;  // every segment runs all its rows through both halves
  std::vector<int32_t> exit_rows_;
  Tensor logits_, taps_;
};

}  // namespace peregrine
