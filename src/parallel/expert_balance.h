// Experts that change their ranks while the engine runs (spec: parallel.md, "Expert load balance").
//
// Steps are counted alike on all ranks. Every `window_steps` the ranks add up how often each expert
// was chosen; every `interval_steps` rank 0 plans a placement from the last window (eplb.h), beside
// running steps, and sends it to all. Each rank then reads the experts that are new to it, again
// beside running steps, and says in its votes on the next pass when it has them. In the first step
// in which all ranks say so, all of them switch all layers. Which copy of an expert computes a row
// changes no bit of the result.
//
// Owns: where the experts of each layer are and the weights of those that are here; the counts; the
// thread that plans and reads. Assumes: weights are host memory, mapped from a checkpoint that
// every rank can read. The pages of an expert that has left are clean pages of that file, which the
// kernel takes back when it needs them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "parallel/communicator.h"
#include "parallel/eplb.h"

namespace peregrine {

struct BalanceStats {
  int64_t rearrangements = 0;
  int64_t experts_read = 0;  // that were new to this rank
  uint64_t bytes_read = 0;   // of them
  double stall_seconds = 0;  // steps waited for counts, plans and switches
  // By layer, drafter stages last: rows that the busiest rank computed in the last window over the
  // mean of all ranks. Empty before the first window has ended.
  std::vector<double> slowest_over_mean;
};

struct BalanceOptions {
  int64_t window_steps = 1000;     // of statistics, at least 1
  int64_t interval_steps = 10000;  // between re-arrangements, at least a window; 0: none
  int redundant = 0;               // copies a layer beyond one an expert, over all ranks
  // Called by the thread that steps when experts have moved.
  std::function<void(const BalanceStats&)> on_switch;
};

// An expert's weights, read through once so that steps find them in memory. Called on a thread
// beside the steps; throws Error.
struct ReadExpert {
  Expert weights;
  uint64_t bytes = 0;
};
using ExpertReader = std::function<ReadExpert(int layer, int expert)>;

// One layer: which ranks hold which experts, and what this one holds.
struct LayerExperts {
  struct Copy {
    int rank = 0;
    int slot = 0;  // on that rank
  };
  std::vector<std::vector<Copy>> copies;  // [experts], at least one each
  std::vector<int32_t> expert_of_slot;    // of this rank
  std::vector<Expert> weights;            // [slots of this rank]
  std::vector<uint32_t> turns;            // [experts]: copies take turns

  // Where the next row for `expert` goes.
  Copy next_copy(int expert);
};

class ExpertBalance {
 public:
  // `experts[l]`: how many layer l has. `communicator` must outlive this and be used by the thread
  // that calls begin_step(). Throws Error(kInvalidArgument) for options that cannot be.
  ExpertBalance(Communicator& communicator, std::vector<int> experts, ExpertReader reader,
                const BalanceOptions& options);
  ~ExpertBalance();

  // This rank's part of the vote on a pass: how far it is.
  uint8_t state() const { return state_; }
  // At the start of a step, with the states of all ranks from the same vote. Switches layers of
  // `layers` when all are ready. Fails the group when this rank could not read an expert.
  void begin_step(std::span<const uint8_t> states, std::vector<LayerExperts>& layers);

  // Own rows chose these experts of a layer; this rank computed so many pairs of row and expert.
  void count(int layer, std::span<const int32_t> experts);
  void count_computed(int layer, int64_t pairs) { computed_[static_cast<size_t>(layer)] += pairs; }

  BalanceStats stats() const;  // thread-safe

 private:
  enum class Phase { kQuiet, kPlanning, kMoving };
  enum State : uint8_t { kNothing, kPlanned, kMoved, kFailed };

  EplbShape shape_of(size_t layer) const;
  void end_window();
  void begin_plan();
  void receive_plan(const std::vector<LayerExperts>& layers);
  // The experts of this rank's slots of a layer.
  struct Held {
    std::vector<int32_t> expert_of_slot;
    std::vector<Expert> weights;
    const Expert* find(int32_t expert) const;
  };
  void read_new(std::stop_token stop, const std::vector<Held>& held);
  LayerExperts arranged(size_t layer) const;
  void run(std::function<void(std::stop_token)> work, State when_done);

  Communicator& communicator_;
  const std::vector<int> experts_;  // [layers]
  const ExpertReader reader_;
  const BalanceOptions options_;

  Phase phase_ = Phase::kQuiet;  // the same on all ranks
  int64_t steps_ = 0;
  std::vector<std::vector<int64_t>> counts_;  // [layers][experts], own rows in this window
  std::vector<int64_t> computed_;             // [layers]
  std::vector<std::vector<double>> window_;   // of all ranks in the last window
  bool has_window_ = false;

  // The placement being prepared; an empty one leaves its layer as it is.
  std::vector<ExpertPlacement> next_;
  std::vector<std::vector<Expert>> next_weights_;  // [layers][slots of this rank]
  std::atomic<uint8_t> state_{kNothing};
  std::string error_;  // with kFailed

  mutable std::mutex mutex_;
  BalanceStats stats_;
  std::jthread thread_;  // last: ends before what it uses
};

}  // namespace peregrine
