#include "parallel/request_dispatcher.h"

#include <algorithm>

#include "engine/device.h"
#include "engine/sequence.h"

namespace peregrine {

RequestDispatcher::RequestDispatcher(int ranks, int takers)
    : takers_(takers),
      mail_(static_cast<size_t>(ranks)),
      given_(static_cast<size_t>(ranks), 0),
      stats_(static_cast<size_t>(ranks)) {}

RequestDispatcher::~RequestDispatcher() = default;

bool RequestDispatcher::send(std::unique_ptr<Sequence>& sequence, int requests_here) {
  const Request& request = sequence->request;
  if (sequence->import || request.on_state || request.sampling.constraint) return false;
  given_[0] = requests_here;
  int best = 0;
  for (int i = takers_; i > 0; --i) {  // equal ones take turns
    const int rank = (last_ + i) % takers_;
    if (i == takers_ || given_[static_cast<size_t>(rank)] <= given_[static_cast<size_t>(best)])
      best = rank;
  }
  last_ = best;
  if (best == 0) return false;

  Request sent = request;
  sent.accept = nullptr;
  if (sequence->deadline_us > 0)
    sent.deadline_seconds = std::max(1e-3, (sequence->deadline_us - now_us()) * 1e-6);
  mail_[static_cast<size_t>(best)].put(
      {.kind = MailKind::kSubmit, .id = sequence->id, .body = write_request(sent)});
  ++given_[static_cast<size_t>(best)];
  const RequestId id = sequence->id;
  elsewhere_.emplace(id, Elsewhere{.sequence = std::move(sequence), .rank = best});
  return true;
}

bool RequestDispatcher::cancel(RequestId id) {
  const auto at = elsewhere_.find(id);
  if (at == elsewhere_.end()) return false;
  mail_[static_cast<size_t>(at->second.rank)].put(
      {.kind = MailKind::kCancel, .id = id, .body = {}});
  return true;
}

void RequestDispatcher::cancel_all() {
  for (const auto& [id, request] : elsewhere_) cancel(id);
}

int RequestDispatcher::take_ended() { return std::exchange(ended_, 0); }

void RequestDispatcher::stop() {
  if (std::exchange(stopped_, true)) return;
  for (MailStream& mail : mail_) mail.put({.kind = MailKind::kStop, .body = {}});
}

std::vector<EngineStats> RequestDispatcher::others() const {
  const std::lock_guard lock(mutex_);
  return {stats_.begin() + 1, stats_.end()};
}

void RequestDispatcher::pack(int peer, Bytes& message) {
  if (peer > 0) mail_[static_cast<size_t>(peer)].pack(message);
}

void RequestDispatcher::unpack(int peer, std::span<const std::byte> bytes) {
  MailStream& mail = mail_[static_cast<size_t>(peer)];
  mail.unpack(bytes);
  while (const auto record = mail.next()) {
    if (record->kind == MailKind::kEvent) hand_on(record->id, read_event(record->body));
    if (record->kind == MailKind::kStats) {
      const EngineStats stats = read_stats(record->body);
      const std::lock_guard lock(mutex_);
      stats_[static_cast<size_t>(peer)] = stats;
    }
  }
}

void RequestDispatcher::hand_on(RequestId id, const MailEvent& event) {
  const auto at = elsewhere_.find(id);
  if (at == elsewhere_.end()) return;  // accept() has ended it
  Sequence& s = *at->second.sequence;
  s.usage = event.usage;
  std::span<const int32_t> tokens = event.tokens;
  bool stopped = false;
  if (s.request.accept && !tokens.empty()) {
    const size_t accepted = std::min(s.request.accept(tokens), tokens.size());
    stopped = accepted < tokens.size();
    s.usage.output_tokens -= static_cast<int64_t>(tokens.size() - accepted);
    tokens = tokens.first(accepted);
  }
  if (s.on_event && !tokens.empty()) {
    Event now{.id = id, .tokens = tokens, .usage = &s.usage};
    now.logprobs = std::span(event.logprobs).first(std::min(event.logprobs.size(), tokens.size()));
    s.on_event(now);
  }
  if (!stopped && !event.finished) return;
  if (!event.finished) {
    cancel(id);
    s.usage.prompt_tokens = s.prompt_length();
    s.usage.total_seconds = (now_us() - s.submit_us) * 1e-6;
  }
  if (s.on_event)
    s.on_event({.id = id,
                .tokens = {},
                .finished = true,
                .reason = stopped ? EndReason::kStop : event.reason,
                .error = event.error,
                .usage = &s.usage});
  --given_[static_cast<size_t>(at->second.rank)];
  elsewhere_.erase(at);
  ++ended_;
}

}  // namespace peregrine
