// The ranks that run one model together by tensor parallelism, as the forward pass sees them
// (spec: parallel.md).
//
// All ranks run every step with the same rows and hold the same state; each holds the rows of the
// large matrices that TensorSplit gives it, computes its share of their products, and the shares
// are put together in rank order. Nothing is added across ranks except the results of experts, in
// the order of a single process. One rank leads: it decides what runs and samples, and the others
// hear of each step from it before it begins.
#pragma once

#include <cstdint>
#include <span>

#include "backend/backend.h"
#include "cache/state_store.h"
#include "model/tensor_split.h"

namespace peregrine {

struct DraftSegment;
struct Step;

// Puts the shares of a matrix of columns together.
struct GatherArgs {
  const char* tag = "";  // names the call: the same on all ranks
  int layer = -1;
  Tensor mine;               // [rows, this rank's columns]
  Tensor whole;              // [rows, cols], columns by rank
  int64_t unit = 1;          // of the shares: TensorSplit::share(cols, unit)
  bool full = false;         // f32 numbers, not act ones
  bool leader_only = false;  // the others' `whole` stays as it is
};

class TensorGroup : public StateObserver {
 public:
  virtual const TensorSplit& split() const = 0;
  bool leads() const { return split().rank() == 0; }

  // -- inside a step: every rank makes the same calls --------------------------------------------
  virtual void gather(Backend& backend, const GatherArgs& args) = 0;
  // As Backend::embed, of a table cut by rows; `whole_rows` is its size before the cut.
  virtual void embed(Backend& backend, const Weight& table, int64_t whole_rows,
                     const int32_t* tokens, int copies, Tensor x) = 0;
  // As Backend::experts. Entries of args.routed that other ranks hold are empty; args.shared is cut
  // by rows.
  virtual void experts(Backend& backend, int layer, const ExpertsArgs& args) = 0;

  // -- steps: on the leader, what the others will do; nothing on the others ----------------------
  // A Forward of at most that many rows is made, then perhaps a Drafter.
  virtual void made_forward(int max_rows) = 0;
  virtual void made_drafter(int max_rows, int max_segments) = 0;
  virtual void runs_step(const Step& step, bool with_drafter) = 0;
  virtual void begins_drafts(std::span<const DraftSegment> segments) = 0;
  virtual void drafts_slot(int slot, std::span<const int> active,
                           std::span<const int32_t> previous) = 0;
};

}  // namespace peregrine
