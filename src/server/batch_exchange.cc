#include "server/batch_exchange.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/fail.h"

namespace peregrine {

BatchWork::BatchWork() : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (wake_ < 0)
    fail(ErrorKind::kIo, "an event descriptor cannot be made: {}", std::strerror(errno));
}

BatchWork::~BatchWork() { ::close(wake_); }

void BatchWork::post(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  work_.push_back(std::move(work));
  if (work_.size() == 1) eventfd_write(wake_, 1);
}

void BatchWork::run() {
  eventfd_t count;
  eventfd_read(wake_, &count);
  while (true) {
    std::deque<std::function<void()>> now;
    {
      const std::lock_guard lock(mutex_);
      now.swap(work_);
    }
    if (now.empty()) return;
    for (const auto& work : now) work();
  }
}

void BatchWork::close() {
  std::deque<std::function<void()>> dropped;  // freed last, without the lock
  const std::lock_guard lock(mutex_);
  closed_ = true;
  dropped.swap(work_);
}

void BatchExchange::respond(HttpResponse response) {
  if (done_) std::exchange(done_, nullptr)(std::move(response));
}

// Lines that ask for a stream are refused before they come here.
void BatchExchange::begin_stream(HttpHeaders) {
  fail(ErrorKind::kInternal, "a stream was begun in a batch, expected whole answers");
}
void BatchExchange::write(std::string) { begin_stream({}); }
void BatchExchange::end_stream() { begin_stream({}); }

}  // namespace peregrine
