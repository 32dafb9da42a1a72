// Chooses what each step runs (spec: scheduler.md): decode rows of every running sequence, chunks
// of prefills under a token budget, admissions; makes room by evicting cached prefixes and
// preempting the latest arrival.
//
// Pure host-side bookkeeping over StateStore and PrefixCache; plans from what is known and reserves
// pages for the worst case, so that a device step can never run out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "cache/prefix_cache.h"
#include "cache/state_store.h"
#include "engine/sequence.h"
#include "engine/state_saver.h"
#include "engine/step_plan.h"

namespace peregrine {

class Scheduler {
 public:
  struct Options {
    int max_running = 0;
    int max_step_tokens = 0;
    int64_t context_tokens = 0;
    int draft_row_budget = 0;
    int window = 0;
    PrefillMode prefill = PrefillMode::kExact;
    bool drafts = false;
    bool replay_imports = true;  // states from elsewhere may be continued by replay
  };

  // `saver` takes the states that requests want given to them; null: they get none.
  Scheduler(StateStore& state, PrefixCache& cache, const Options& options,
            StateSaver* saver = nullptr);

  // -- requests
  // ------------------------------------------------------------------------------------
  void add(std::unique_ptr<Sequence> sequence);
  Sequence* find(RequestId id);
  // The sequence a group's results belong to; nullptr when its stay is over.
  Sequence* owner(const RowGroup& group) const;
  int waiting() const { return static_cast<int>(waiting_.size()); }
  int running() const { return static_cast<int>(running_.size()); }
  // Sequences in the batch, and waiting ones that it has places for.
  int places() const { return std::min(running() + waiting(), options_.max_running); }
  bool idle() const { return waiting_.empty() && running_.empty() && releases_.empty(); }
  // Every sequence that has not ended; the callback must not add or remove any.
  void for_each(const std::function<void(Sequence&)>& visit);

  // -- steps
  // ----------------------------------------------------------------------------------------- Fills
  // `plan` for step `number`; false when nothing can run now.
  // `mixed_rows`: most prompt rows beside decoding sequences. Without `prefill` no prompt rows.
  bool plan(int64_t number, int mixed_rows, StepPlan& plan, bool prefill = true);

  // What a group of ranks votes on: prompt rows that could be planned, sequences that decode.
  bool wants_prefill() const;
  bool decoding() const;

  // Takes the sequence out: its slot and pages are freed once step `last_step` is complete. With
  // `keep`, its computed prefix goes to the cache first. Returns ownership of the sequence.
  std::unique_ptr<Sequence> remove(Sequence& sequence, bool keep);
  // The end of a prompt is a point worth keeping for requests that share it.
  void cache_prompt(const Sequence& sequence);
  // Frees what steps up to `completed` held; true when there was something.
  bool release_until(int64_t completed);
  // After a failed step: nothing that waits for release is worth caching.
  void forget_unsaved();

  // Of a prompt: what a stay that began now would find computed.
  int64_t cached_tokens(std::span<const int32_t> prompt);

  int64_t preemptions() const { return preemptions_; }
  // One sentence, or empty: slots and pages all accounted for.
  std::string check_integrity() const;

 private:
  // Slot and pages whose owner is done on the host but which submitted work may still touch.
  struct DeferredRelease {
    int slot;
    int64_t step;
    std::vector<int32_t> tokens;  // to cache: positions 0 .. keep - 1
    int64_t keep;
    bool exact;
    bool rings;  // the rings hold everything a row at `keep` would read
    StateSaver::Receiver on_state;
  };

  bool make_room(int64_t tokens, int64_t writable_from, Sequence& wanting);
  bool preempt_for(Sequence& wanting);
  bool holds_pages(const Sequence& sequence) const;
  void give_up_slot(Sequence& sequence, int64_t keep);
  bool plan_decode(Sequence& sequence, StepPlan& plan, int rows_left, int64_t number);
  int plan_prefill(Sequence& sequence, StepPlan& plan, int rows_left, int64_t number);
  bool admit_next();
  void begin_stay(Sequence& sequence);
  // Where a stay's prefill starts, and whether the window before a hit is replayed.
  struct Start {
    int64_t hit = 0;
    bool replay = false;
  };
  Start choose_start(int64_t exact_length, int64_t replay_length) const;
  int64_t first_position(const Start& start) const;
  bool attach_import(Sequence& sequence, const Start& cached, Start& start);
  bool fill_imported_pages(Sequence& sequence, bool in_pieces);
  bool shares_running_prefill(const Sequence& sequence) const;
  RowGroup group_of(Sequence& sequence, GroupKind kind, int64_t number, const StepPlan& plan);

  StateStore& state_;
  PrefixCache& cache_;
  Options options_;
  StateSaver* saver_;
  bool saver_holds_pages_ = false;
  std::deque<std::unique_ptr<Sequence>> waiting_;   // by before()
  std::vector<std::unique_ptr<Sequence>> running_;  // by before(); prefilling ones too
  std::vector<Sequence*> by_slot_;
  std::vector<DeferredRelease> releases_;
  int64_t preemptions_ = 0;
  bool short_of_pages_ = false;  // in this plan: somebody running must come before new arrivals
};

}  // namespace peregrine
