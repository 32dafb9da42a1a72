// The loop of the engine (spec: scheduler.md): plans step N + 1 and post-processes step N - 1 while
// the device runs step N. The plain loop stands beside it behind one switch and gives the same
// bits.
//
// Owned by one thread, which is the only one to touch the scheduler, the prefix cache and the page
// books. Others reach it through the mailbox.
#pragma once

#include <array>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/device.h"
#include "engine/prefill_pace.h"
#include "engine/scheduler.h"
#include "engine/step_group.h"
#include "engine/trace.h"
#include "peregrine/engine.h"

namespace peregrine {

class EngineLoop {
 public:
  // With `group` every round of the loop is agreed with the other ranks.
  EngineLoop(Device& device, Scheduler& scheduler, PrefixCache& cache, StateStore& state,
             const EngineOptions& options, StepGroup* group = nullptr);
  ~EngineLoop();

  void submit(
      std::unique_ptr<Sequence> sequence);  // throws Error(kUnavailable) when full or closed
  void cancel(RequestId id);
  void close();  // no further submit()
  bool idle() const;
  void cancel_all();
  std::vector<EngineStats> stats_by_rank() const;  // this loop's, then what the courier knows
  // Runs `visit` on the loop's thread between steps and waits for it.
  void between_steps(const std::function<void()>& visit);
  // The same with steps in flight.
  void on_loop_thread(const std::function<void()>& visit);

 private:
  void wait_for_visit(std::vector<std::function<void()>>& list, const std::function<void()>& visit);
  void run();
  void run_alone();
  void run_in_group();
  bool take_mail();
  bool has_mail() const;  // holding mutex_
  bool plan_and_submit();
  void submit_planned(double begin_us);
  void complete_oldest();
  void flush();
  void post_process(StepState& step);
  void commit(Sequence& sequence, const RowGroup& group, const GroupOutput& out,
              const StepOutput& all);
  void finish(Sequence& sequence, EndReason reason, const std::string& error = {});
  void check_deadlines();
  void measure(const StepState& step);
  void publish_stats();

  static constexpr int kRing = 3;  // the device reads the step before the one it runs

  Device& device_;
  Scheduler& scheduler_;
  PrefixCache& cache_;
  StateStore& state_;
  const EngineOptions options_;
  StepGroup* const group_;
  RequestCourier* const courier_;  // null: requests stay here
  std::optional<Trace> trace_;
  std::array<StepState, kRing> ring_;
  int64_t next_ = 0;  // number of the next step
  int64_t completed_ = -1;
  PrefillPace pace_;
  double previous_end_us_ = 0;
  bool had_work_ = false;  // another step was queued when the last one ended
  double next_deadline_check_us_ = 0;
  EngineStats counters_;  // the loop's own
  int ended_ = 0;         // requests that ended since the last publish_stats()

  mutable std::mutex mutex_;
  std::condition_variable mail_;
  std::vector<std::unique_ptr<Sequence>> arrivals_;
  std::vector<RequestId> cancels_;
  std::vector<std::function<void()>> visits_, questions_;  // these wait for no step
  bool cancel_all_ = false, closed_ = false, stopping_ = false;
  int pending_ = 0;  // requests that have not ended
  int queued_ = 0;   // of these, not in the batch
  EngineStats published_;
  std::thread thread_;
};

}  // namespace peregrine
