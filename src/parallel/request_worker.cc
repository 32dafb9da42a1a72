#include "parallel/request_worker.h"

#include "engine/device.h"
#include "peregrine/error.h"

namespace peregrine {
namespace {

constexpr double kStatsUs = 100e3;  // between two reports

}  // namespace

void RequestWorker::serve(Engine& engine) {
  engine_ = &engine;
  std::unique_lock lock(mutex_);
  stop_.wait(lock, [this] { return stopped_; });
  engine_ = nullptr;
}

void RequestWorker::pack(int peer, Bytes& message) {
  if (peer != 0) return;
  Engine* engine = engine_;
  if (const double now = now_us(); engine && now >= stats_sent_us_ + kStatsUs) {
    stats_sent_us_ = now;
    mail_.put({.kind = MailKind::kStats, .body = write_stats(engine->stats())});
  }
  mail_.pack(message);
}

void RequestWorker::unpack(int peer, std::span<const std::byte> bytes) {
  if (peer != 0) return;
  mail_.unpack(bytes);
  Engine* engine = engine_;
  if (!engine) return;  // soon
  while (const auto record = mail_.next()) take(*record, *engine);
}

void RequestWorker::take(const MailRecord& record, Engine& engine) {
  switch (record.kind) {
    case MailKind::kSubmit:
      return submit(record, engine);
    case MailKind::kCancel:
      if (const auto at = ids_.find(record.id); at != ids_.end()) engine.cancel(at->second);
      return;
    case MailKind::kStop: {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
      stop_.notify_all();
      return;
    }
    default:
      return;
  }
}

// On the engine's thread, as its callbacks.
void RequestWorker::submit(const MailRecord& record, Engine& engine) {
  const RequestId id = record.id;
  try {
    ids_[id] = engine.submit(read_request(record.body), [this, id](const Event& event) {
      mail_.put({.kind = MailKind::kEvent, .id = id, .body = write_event(event)});
      if (event.finished) ids_.erase(id);
    });
  } catch (const Error& error) {
    const Event refused{.tokens = {},
                        .logprobs = {},
                        .finished = true,
                        .reason = EndReason::kError,
                        .error = error.what()};
    mail_.put({.kind = MailKind::kEvent, .id = id, .body = write_event(refused)});
  }
}

}  // namespace peregrine
