#include "engine/engine_loop.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <future>
#include <utility>

#include "base/fail.h"

namespace peregrine {
namespace {

constexpr double kDeadlineCheckUs = 5000;
}  // namespace

EngineLoop::EngineLoop(Device& device, Scheduler& scheduler, PrefixCache& cache, StateStore& state,
                       const EngineOptions& options, StepGroup* group)
    : device_(device),
      scheduler_(scheduler),
      cache_(cache),
      state_(state),
      options_(options),
      group_(group),
      courier_(group ? group->courier() : nullptr),
      pace_(options.max_step_tokens) {
  if (!options.trace_file.empty()) trace_.emplace(options.trace_file);
  publish_stats();
  thread_ = std::thread([this] { run(); });
}

EngineLoop::~EngineLoop() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = cancel_all_ = stopping_ = true;
  }
  mail_.notify_one();
  thread_.join();
}

// -- mailbox -------------------------------------------------------------------------------------

void EngineLoop::submit(std::unique_ptr<Sequence> sequence) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) fail(ErrorKind::kUnavailable, "the engine is shutting down");
    if (queued_ >= options_.max_waiting)
      fail(ErrorKind::kUnavailable, "the queue is full: {} requests are waiting", queued_);
    ++pending_;
    ++queued_;
    arrivals_.push_back(std::move(sequence));
  }
  mail_.notify_one();
}

void EngineLoop::cancel(RequestId id) {
  {
    const std::lock_guard lock(mutex_);
    cancels_.push_back(id);
  }
  mail_.notify_one();
}

void EngineLoop::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

void EngineLoop::cancel_all() {
  {
    const std::lock_guard lock(mutex_);
    cancel_all_ = true;
  }
  mail_.notify_one();
}

bool EngineLoop::idle() const {
  const std::lock_guard lock(mutex_);
  return pending_ == 0;
}

std::vector<EngineStats> EngineLoop::stats_by_rank() const {
  std::vector<EngineStats> all(1);
  if (courier_)
    for (const EngineStats& other : courier_->others()) all.push_back(other);
  const std::lock_guard lock(mutex_);
  all[0] = published_;
  return all;
}

void EngineLoop::between_steps(const std::function<void()>& visit) {
  wait_for_visit(visits_, visit);
}

void EngineLoop::on_loop_thread(const std::function<void()>& visit) {
  wait_for_visit(questions_, visit);
}

void EngineLoop::wait_for_visit(std::vector<std::function<void()>>& list,
                                const std::function<void()>& visit) {
  std::promise<void> done;
  {
    const std::lock_guard lock(mutex_);
    list.push_back([&] {
      visit();
      done.set_value();
    });
  }
  mail_.notify_one();
  done.get_future().wait();
}

// Takes what arrived; false when the loop should end.
bool EngineLoop::take_mail() {
  std::vector<std::unique_ptr<Sequence>> arrivals;
  std::vector<RequestId> cancels;
  std::vector<std::function<void()>> visits, questions;
  bool cancel_all, stopping;
  {
    const std::lock_guard lock(mutex_);
    arrivals.swap(arrivals_);
    cancels.swap(cancels_);
    visits.swap(visits_);
    questions.swap(questions_);
    cancel_all = std::exchange(cancel_all_, false);
    stopping = stopping_;
  }
  for (auto& sequence : arrivals) {
    if (courier_ && courier_->send(sequence, scheduler_.running() + scheduler_.waiting())) continue;
    ++counters_.requests;
    scheduler_.add(std::move(sequence));
  }
  for (const RequestId id : cancels) {
    if (courier_ && courier_->cancel(id)) continue;
    if (Sequence* s = scheduler_.find(id)) finish(*s, EndReason::kCancelled);
  }
  if (cancel_all) {
    std::vector<Sequence*> all;
    scheduler_.for_each([&](Sequence& s) { all.push_back(&s); });
    for (Sequence* s : all) finish(*s, EndReason::kCancelled);
    if (courier_) courier_->cancel_all();
  }
  if (courier_) {
    ended_ += courier_->take_ended();
    if (stopping) courier_->stop();
  }
  if (ended_ > 0) publish_stats();
  for (const auto& question : questions) question();
  if (!visits.empty()) {
    flush();
    for (const auto& visit : visits) visit();
  }
  return !(stopping && scheduler_.idle() && completed_ == next_ - 1 &&
           (!courier_ || courier_->idle()));
}

// -- the loop ------------------------------------------------------------------------------------

void EngineLoop::run() { group_ ? run_in_group() : run_alone(); }

void EngineLoop::run_alone() {
  while (take_mail()) {
    check_deadlines();
    const bool planned = plan_and_submit();
    const int64_t in_flight = next_ - 1 - completed_;
    // Overlapped: one step stays on the device while the next is planned.
    if (in_flight > (options_.overlap && planned ? 1 : 0)) {
      complete_oldest();
      continue;
    }
    if (planned) continue;
    // Nothing runs: what finished steps held is free, and the books must balance.
    if (scheduler_.release_until(completed_)) continue;
    publish_stats();
    if (const std::string broken = scheduler_.check_integrity(); !broken.empty())
      spdlog::error("integrity: {}", broken);
    std::unique_lock lock(mutex_);
    const auto mail = [this] { return has_mail(); };
    // Requests may be waiting for something that no event announces (a deadline): look again soon.
    if (pending_ > 0) {
      mail_.wait_for(lock, std::chrono::milliseconds(5), mail);
    } else {
      mail_.wait(lock, mail);
    }
  }
}

bool EngineLoop::has_mail() const {
  return !arrivals_.empty() || !cancels_.empty() || !visits_.empty() || !questions_.empty() ||
         cancel_all_ || stopping_;
}

// A round is a vote, a plan and a step of the same kind on all ranks, be it without rows here. Ends
// when every rank is done: until then this rank's experts are needed.
void EngineLoop::run_in_group() {
  while (true) {
    const bool done = !take_mail();
    check_deadlines();
    StepKind kind = group_->vote(
        {.prefill = scheduler_.wants_prefill(), .decode = scheduler_.decoding(), .done = done});
    if (kind == StepKind::kStop) return;
    const double begin = now_us();
    if (kind == StepKind::kDecode || kind == StepKind::kPrefill) {
      StepPlan& plan = ring_[static_cast<size_t>(next_ % kRing)].plan;
      scheduler_.plan(next_, pace_.rows(next_), plan, kind == StepKind::kPrefill);
      if (kind == StepKind::kPrefill)
        kind = group_->confirm(
            std::any_of(plan.groups.begin(), plan.groups.end(),
                        [](const RowGroup& g) { return g.kind == GroupKind::kPrefill; }));
    }
    if (kind == StepKind::kIdle || kind == StepKind::kWait) {
      flush();
      scheduler_.release_until(completed_);
      publish_stats();
      if (kind == StepKind::kWait) continue;
      std::unique_lock lock(mutex_);
      mail_.wait_for(lock, std::chrono::milliseconds(1), [this] { return has_mail(); });
      continue;
    }
    submit_planned(begin);
    while (next_ - 1 - completed_ > (options_.overlap ? 1 : 0)) complete_oldest();
  }
}

bool EngineLoop::plan_and_submit() {
  const double begin = now_us();
  if (!scheduler_.plan(next_, pace_.rows(next_), ring_[static_cast<size_t>(next_ % kRing)].plan)) {
    counters_.host_seconds += (now_us() - begin) * 1e-6;
    return false;
  }
  submit_planned(begin);
  return true;
}

// The plan of step next_, begun at `begin`, goes to the device.
void EngineLoop::submit_planned(double begin) {
  StepState& step = ring_[static_cast<size_t>(next_ % kRing)];
  const double end = now_us();
  counters_.host_seconds += (end - begin) * 1e-6;
  step.number = next_++;
  step.output.clear();
  step.error.clear();
  step.submit_us = end;
  if (trace_) trace_->add(Trace::Lane::kHost, "plan", begin, end, step.number, 0);
  device_.submit(step);
}

void EngineLoop::complete_oldest() {
  StepState& step = ring_[static_cast<size_t>((completed_ + 1) % kRing)];
  device_.wait(step.number);
  completed_ = step.number;
  const double begin = now_us();
  measure(step);
  if (!step.error.empty()) scheduler_.forget_unsaved();
  post_process(step);
  scheduler_.release_until(completed_);
  publish_stats();
  const double end = now_us();
  counters_.host_seconds += (end - begin) * 1e-6;
  if (trace_)
    trace_->add(Trace::Lane::kHost, "post-process", begin, end, step.number, step.output.rows);
}

// Commits everything in flight.
void EngineLoop::flush() {
  while (completed_ < next_ - 1) complete_oldest();
}

void EngineLoop::measure(const StepState& step) {
  const double us = step.device_end_us - step.device_begin_us;
  if (trace_)
    trace_->add(Trace::Lane::kDevice, "step", step.device_begin_us, step.device_end_us, step.number,
                step.output.rows);
  counters_.device_busy_seconds += us * 1e-6;
  // The gap counts as idle when this step was submitted before the one before it had ended, or was
  // held up by the host although sequences were running.
  if (previous_end_us_ > 0 && had_work_)
    counters_.device_idle_seconds += std::max(0.0, step.device_begin_us - previous_end_us_) * 1e-6;
  previous_end_us_ = step.device_end_us;
  counters_.last_step_ms = us * 1e-3;
  ++counters_.steps;

  int prefill_rows = 0, decodes = 0;
  for (const RowGroup& group : step.plan.groups)
    group.kind == GroupKind::kPrefill ? prefill_rows += group.count : ++decodes;
  if (decodes > 0 && step.error.empty())
    pace_.record({.prompt_rows = prefill_rows,
                  .us = us,
                  .decoding = decodes,
                  .reading = std::max(0, scheduler_.places() - decodes)});
}

void EngineLoop::post_process(StepState& step) {
  for (size_t g = 0; g < step.plan.groups.size(); ++g) {
    const RowGroup& group = step.plan.groups[g];
    Sequence* s = scheduler_.owner(group);
    if (!s) continue;  // finished, cancelled or preempted since: its results are discarded
    --s->inflight_steps;
    s->inflight_tokens -= group.kind == GroupKind::kPrefill ? group.count : group.max_rows;
    if (!step.error.empty()) {
      finish(*s, EndReason::kError, step.error);
      continue;
    }
    commit(*s, group, step.output.groups[g], step.output);
  }
  had_work_ = scheduler_.running() > 0;
}

void EngineLoop::commit(Sequence& s, const RowGroup& group, const GroupOutput& out,
                        const StepOutput& all) {
  if (group.kind == GroupKind::kPrefill) {
    s.computed = group.start + group.count;
    counters_.prompt_tokens += group.count;
    if (group.last) scheduler_.cache_prompt(s);
  } else {
    s.computed += out.tokens;
    ++s.usage.steps;
    s.usage.verified += out.verified;
    s.usage.accepted += out.accepted;
    counters_.verified += out.verified;
    counters_.accepted += out.accepted;
    for (size_t i = 0; i < static_cast<size_t>(out.verified); ++i) {
      const bool stood = i < static_cast<size_t>(out.accepted);
      ++s.usage.verified_at[i], ++counters_.verified_at[i];
      s.usage.accepted_at[i] += stood, counters_.accepted_at[i] += stood;
    }
  }
  s.usage.drafted += out.drafted;
  if (out.tokens == 0) return;

  if (!s.saw_first_token) {
    s.saw_first_token = true;
    s.usage.ttft_seconds = (now_us() - s.submit_us) * 1e-6;
  }
  // Cut at the first stop: tokens behind it in the block were never asked for.
  const auto first = static_cast<size_t>(out.first_token);
  auto tokens = std::span(all.tokens).subspan(first, static_cast<size_t>(out.tokens));
  const auto left = static_cast<size_t>(
      std::min<int64_t>(s.request.max_tokens - s.output_length(),
                        options_.context_tokens - static_cast<int64_t>(s.tokens.size())));
  bool stopped = false;
  if (tokens.size() > left) tokens = tokens.first(left);
  for (size_t i = 0; i < tokens.size() && !stopped; ++i) {
    if (std::find(s.request.stop_ids.begin(), s.request.stop_ids.end(), tokens[i]) ==
        s.request.stop_ids.end())
      continue;
    tokens = tokens.first(i + 1);
    stopped = true;
  }
  if (s.request.accept) {
    const size_t accepted = std::min(s.request.accept(tokens), tokens.size());
    if (accepted < tokens.size()) {
      tokens = tokens.first(accepted);
      stopped = true;
    }
  }
  s.tokens.insert(s.tokens.end(), tokens.begin(), tokens.end());
  s.usage.output_tokens = s.output_length();
  counters_.output_tokens += static_cast<int64_t>(tokens.size());
  if (s.on_event && !tokens.empty()) {
    Event event{.id = s.id, .tokens = tokens, .usage = &s.usage};
    if (s.request.sampling.logprobs)
      event.logprobs = std::span(all.logprobs).subspan(first, tokens.size());
    s.on_event(event);
  }
  if (stopped) {
    finish(s, EndReason::kStop);
  } else if (s.output_length() >= s.request.max_tokens ||
             static_cast<int64_t>(s.tokens.size()) >= options_.context_tokens) {
    finish(s, EndReason::kLength);
  }
}

void EngineLoop::finish(Sequence& s, EndReason reason, const std::string& error) {
  s.usage.prompt_tokens = s.prompt_length();
  s.usage.total_seconds = (now_us() - s.submit_us) * 1e-6;
  ++counters_.finished;
  counters_.cancelled += reason == EndReason::kCancelled || reason == EndReason::kDeadline;
  counters_.failed += reason == EndReason::kError;
  counters_.cached_tokens += s.usage.cached_tokens;
  // A failed step may have left anything behind; other endings keep what was computed.
  const auto owned = scheduler_.remove(s, reason != EndReason::kError);
  if (owned->on_event)
    owned->on_event({.id = owned->id,
                     .tokens = {},
                     .finished = true,
                     .reason = reason,
                     .error = error,
                     .usage = &owned->usage});
  ++ended_;
}

void EngineLoop::check_deadlines() {
  const double now = now_us();
  if (now < next_deadline_check_us_) return;
  next_deadline_check_us_ = now + kDeadlineCheckUs;
  std::vector<Sequence*> late;
  scheduler_.for_each([&](Sequence& s) {
    if (s.deadline_us > 0 && now > s.deadline_us) late.push_back(&s);
  });
  for (Sequence* s : late) finish(*s, EndReason::kDeadline);
  if (!late.empty()) publish_stats();
}

void EngineLoop::publish_stats() {
  counters_.running = scheduler_.running();
  counters_.waiting = scheduler_.waiting();
  counters_.preemptions = scheduler_.preemptions();
  counters_.pages_total = state_.pool().capacity();
  counters_.pages_used = state_.pool().used_pages();
  counters_.pages_cached = cache_.pages();
  const std::lock_guard lock(mutex_);
  pending_ -= std::exchange(ended_, 0);
  published_ = counters_;
  queued_ = counters_.waiting + static_cast<int>(arrivals_.size());
}

}  // namespace peregrine
