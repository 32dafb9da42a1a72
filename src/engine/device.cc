#include "engine/device.h"

#include <chrono>

namespace peregrine {

double now_us() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Device::start() {
  thread_ = std::thread([this] { loop(); });
}

void Device::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  submitted_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Device::submit(StepState& state) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(&state);
  }
  submitted_.notify_one();
}

void Device::wait(int64_t number) {
  std::unique_lock lock(mutex_);
  completed_.wait(lock, [&] { return completed_number_ >= number; });
}

void Device::loop() {
  const StepState* previous = nullptr;
  std::unique_lock lock(mutex_);
  while (true) {
    submitted_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    StepState* state = queue_.front();
    queue_.pop_front();
    lock.unlock();
    state->device_begin_us = now_us();
    run(*state, previous);
    state->device_end_us = now_us();
    previous = state;
    lock.lock();
    completed_number_ = state->number;
    completed_.notify_all();
  }
}

}  // namespace peregrine
