// The thread that drives UCX ports: it runs what others post to it, makes progress, and sleeps in
// poll() until a port, a post or the next deadline needs it.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "kvshare/ucx/ucx_port.h"

namespace peregrine {

class PortLoop {
 public:
  using Clock = std::chrono::steady_clock;
  using Task = std::function<void()>;
  // Called between rounds; returns when it wants to be called again at the latest.
  using Tick = std::function<Clock::time_point(Clock::time_point now)>;

  PortLoop();
  ~PortLoop();  // stopped before
  PortLoop(const PortLoop&) = delete;
  PortLoop& operator=(const PortLoop&) = delete;

  // Throws nothing; `tick` runs on the thread.
  void start(Tick tick);
  // Runs what was posted before, then ends the thread. Later posts are dropped.
  void stop();
  void post(Task task);  // any thread

  // From the thread, or before start() and after stop().
  void add(UcxPort* port) { ports_.push_back(port); }
  void remove(UcxPort* port) { std::erase(ports_, port); }

 private:
  void run(const Tick& tick);
  bool run_tasks();

  int wake_fd_;
  std::vector<UcxPort*> ports_;
  std::mutex mutex_;
  std::vector<Task> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace peregrine
