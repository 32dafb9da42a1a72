#include "base/thread_pool.h"

namespace peregrine {
namespace {

// About 50 microseconds on current x86 cores: longer than the gap between two operations of a
// decode step, shorter than anyone notices on an idle machine.
constexpr int kSpins = 2000;

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) {
    workers_.emplace_back([this, i] { work(i); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_.store(true);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int64_t n, Call call, void* fn) {
  if (n <= 0) return;
  if (workers_.empty() || n == 1) {
    for (int64_t i = 0; i < n; ++i) call(fn, i, 0);
    return;
  }
  call_ = call;
  fn_ = fn;
  n_ = n;
  next_.store(0);
  epoch_.fetch_add(1);
  if (sleepers_.load() > 0) {
    // Taking the lock waits until a worker on its way to sleep is inside wait().
    { const std::lock_guard lock(mutex_); }
    wake_.notify_all();
  }
  drain(0);
  epoch_.fetch_add(1);
  for (int spins = 0; inside_.load() != 0; ++spins) {
    if (spins < kSpins) {
      pause();
    } else {
      std::this_thread::yield();  // more threads than cores: let the last worker run
    }
  }
}

void ThreadPool::drain(int thread) {
  for (;;) {
    const int64_t i = next_.fetch_add(1, std::memory_order_relaxed);
    if (i >= n_) return;
    call_(fn_, i, thread);
  }
}

void ThreadPool::work(int thread) {
  uint64_t seen = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    const uint64_t epoch = wait_for_change(seen);
    seen = epoch;
    if (epoch % 2 == 0) continue;
    inside_.fetch_add(1);
    if (epoch_.load() % 2 == 1) drain(thread);
    inside_.fetch_sub(1);
  }
}

// The first epoch other than `seen`, or any epoch when the pool stops.
uint64_t ThreadPool::wait_for_change(uint64_t seen) {
  for (int spins = 0; spins < kSpins; ++spins) {
    const uint64_t epoch = epoch_.load(std::memory_order_acquire);
    if (epoch != seen) return epoch;
    pause();
  }
  std::unique_lock lock(mutex_);
  sleepers_.fetch_add(1);
  wake_.wait(lock, [&] { return stop_.load() || epoch_.load() != seen; });
  sleepers_.fetch_sub(1);
  return epoch_.load();
}

}  // namespace peregrine
