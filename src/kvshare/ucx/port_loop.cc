#include "kvshare/ucx/port_loop.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "base/file_descriptor.h"

namespace peregrine {
namespace {

// UCX 1.13 does some of its own work (steps of a connection, the end of a closed one) only when it
// is asked to progress, and its descriptor does not say so. That work follows other work, so looks
// are frequent after something happened and become rare while nothing does.
constexpr int64_t kShortestSleepMs = 10, kLongestSleepMs = 2000;

}  // namespace

PortLoop::PortLoop() : wake_fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (wake_fd_ < 0) fail(ErrorKind::kIo, "no event descriptor ({})", system_reason());
}

PortLoop::~PortLoop() {
  stop();
  ::close(wake_fd_);
}

void PortLoop::start(Tick tick) {
  thread_ = std::thread([this, tick = std::move(tick)] { run(tick); });
}

void PortLoop::stop() {
  post([this] { stopping_ = true; });
  if (thread_.joinable()) thread_.join();
}

void PortLoop::post(Task task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wake_fd_, &one, sizeof(one));
}

bool PortLoop::run_tasks() {
  std::vector<Task> tasks;
  {
    const std::lock_guard lock(mutex_);
    tasks.swap(tasks_);
  }
  for (const Task& task : tasks) task();
  return !tasks.empty();
}

void PortLoop::run(const Tick& tick) {
  constexpr int kRounds = 64;  // of progress before others get a turn
  std::vector<pollfd> fds;
  int64_t sleep_ms = kShortestSleepMs;
  while (!stopping_) {
    bool busy = run_tasks();
    for (size_t i = 0; i < ports_.size(); ++i)
      for (int round = 0; round < kRounds && ports_[i]->progress(); ++round) busy = true;
    const Clock::time_point now = Clock::now();
    const Clock::time_point next = tick(now);
    if (busy) sleep_ms = kShortestSleepMs;
    if (busy || stopping_) continue;
    if (!std::all_of(ports_.begin(), ports_.end(), [](UcxPort* port) { return port->arm(); }))
      continue;
    fds.assign(1, {.fd = wake_fd_, .events = POLLIN, .revents = 0});
    for (const UcxPort* port : ports_)
      fds.push_back({.fd = port->event_fd(), .events = POLLIN, .revents = 0});
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next - now).count();
    ::poll(fds.data(), fds.size(), static_cast<int>(std::clamp<int64_t>(wait, 0, sleep_ms)));
    sleep_ms = std::min(2 * sleep_ms, kLongestSleepMs);
    uint64_t drained = 0;
    [[maybe_unused]] const ssize_t n = ::read(wake_fd_, &drained, sizeof(drained));
  }
}

}  // namespace peregrine
