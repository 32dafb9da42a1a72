// The device of the engine: an in-order queue that runs steps on a thread of its own.
//
// run() is what a kind of device does with a step; submit() and wait() are the queue. A CPU is
// driven the same way as an accelerator, so that planning and post-processing overlap with compute.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

#include "engine/step_plan.h"

namespace peregrine {

class Device {
 public:
  virtual ~Device() = default;

  // Queues a step; `state` must stay alive until wait() has returned for it.
  void submit(StepState& state);
  // Returns when step `number` and all before it are complete.
  void wait(int64_t number);

 protected:
  // Runs a step after the one submitted before it (nullptr for the first). Never throws.
  virtual void run(StepState& state, const StepState* previous) = 0;

  // To be called at the end of a derived constructor and at the start of its destructor.
  void start();
  void stop();

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable submitted_, completed_;
  std::deque<StepState*> queue_;
  int64_t completed_number_ = -1;
  bool stopping_ = false;
  std::thread thread_;
};

// Microseconds on the steady clock.
double now_us();
inline double now_seconds() { return now_us() * 1e-6; }

}  // namespace peregrine
