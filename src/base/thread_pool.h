// Worker threads for loops of short, independent pieces of work.
//
// Owns its threads; there is no global pool. A pool of n threads starts n - 1 workers: the thread
// that calls parallel_for works too. Pieces are handed out one at a time in ascending order, so
// their results must not depend on which thread takes which. Between loops workers spin for some
// microseconds and then sleep. One loop at a time: parallel_for must not be called from two threads
// at once or from inside a piece. Pieces do not throw.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace peregrine {

class ThreadPool {
 public:
  // `threads` of at least 1, the caller of parallel_for included.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls fn(i) or fn(i, thread) for every i in [0, n), thread in [0, threads()), and returns when
  // all calls have. What the calls wrote is visible to the caller.
  template <typename Fn>
  void parallel_for(int64_t n, Fn&& fn) {
    using Function = std::remove_reference_t<Fn>;
    run(n, &call<Function>, const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  using Call = void (*)(void* fn, int64_t i, int thread);

  template <typename Function>
  static void call(void* fn, int64_t i, int thread) {
    if constexpr (std::is_invocable_v<Function&, int64_t, int>) {
      (*static_cast<Function*>(fn))(i, thread);
    } else {
      (*static_cast<Function*>(fn))(i);
    }
  }

  void run(int64_t n, Call call, void* fn);
  void drain(int thread);
  void work(int thread);
  uint64_t wait_for_change(uint64_t seen);

  // The open loop. Written only while no worker is inside (epoch even and inside zero).
  Call call_ = nullptr;
  void* fn_ = nullptr;
  int64_t n_ = 0;

  // Odd while a loop is open. A worker counts itself inside, then looks at the epoch again; the
  // caller closes the epoch, then waits for inside to reach zero. Both are sequentially consistent,
  // so at least one of the two sees the other and no worker reads a loop that is over.
  alignas(64) std::atomic<uint64_t> epoch_{0};
  alignas(64) std::atomic<int> inside_{0};
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace peregrine
