#include "server/batch_runner.h"

#include <poll.h>

#include <utility>

#include "base/fail.h"
#include "server/openai_chat.h"
#include "server/openai_completions.h"

namespace peregrine {
namespace {

constexpr size_t kPendingBytes = size_t{256} << 20;
constexpr int kLinesARound = 1000;  // between two ticks
constexpr int kTickMs = 200;
constexpr int kServerErrorsInARow = 16;  // the engine is beyond help

}  // namespace

BatchRunner::BatchRunner(Service& service, BatchInput& input, BatchJournal& journal,
                         const BatchOptions& options)
    : service_(service),
      input_(input),
      journal_(journal),
      options_(options),
      start_limit_(2 * static_cast<size_t>(service.engine.options().max_running)),
      pool_limit_(8 * start_limit_),
      window_(4 * pool_limit_),
      router_(Auth({})),
      work_(std::make_shared<BatchWork>()),
      pool_(options.schedule) {
  const auto add = [this](const char* path, auto handler) {
    router_.add({.method = "POST",
                 .path = path,
                 .handle = [this, handler](const std::shared_ptr<Exchange>& exchange) {
                   handler(service_, exchange);
                 }});
  };
  add("/chat/completions", handle_chat_completions);
  add("/completions", handle_completions);
}

BatchRunner::~BatchRunner() { work_->close(); }

BatchProgress BatchRunner::run(const std::function<BatchCommand(const BatchProgress&)>& tick) {
  while (true) {
    work_->run();
    bool more_to_read = false;
    if (!progress_.draining) {
      more_to_read = read_lines();
      start_requests();
    }
    write_results();
    const bool read_all = input_.at_end() && !more_to_read;
    progress_.complete = read_all && open_.empty();
    if (progress_.complete || (progress_.draining && progress_.running == 0)) break;
    obey(tick(progress_));
    wait(more_to_read);
  }
  journal_.sync();
  return progress_;
}

// A slow head holds back the results behind it; reading then stops until it has ended.
bool BatchRunner::has_room() const {
  return pool_.size() < pool_limit_ && open_.size() + ready_.size() < window_ &&
         (pending_bytes_ < kPendingBytes || open_.empty());
}

// True: there may be another line at once.
bool BatchRunner::read_lines() {
  for (int i = 0; i < kLinesARound && has_room(); ++i) {
    std::optional<BatchInputLine> line = input_.next();
    if (!line) return false;
    take_line(std::move(*line));
  }
  return has_room();
}

void BatchRunner::take_line(BatchInputLine line) {
  BatchJob job{.line = line.number};
  if (line.too_long) {
    job.request.code = "line_too_long";
    job.request.problem = fmt::format("the line is longer than {} bytes", kMaxBatchLineBytes);
  } else {
    job.request = parse_batch_line(line.text);
  }
  BatchLine& request = job.request;
  if (request.custom_id && !custom_ids_.insert(*request.custom_id) && request.problem.empty()) {
    request.code = "duplicate_custom_id";
    request.problem = fmt::format("custom_id \"{}\" stands in an earlier line, expected a new one",
                                  request.custom_id->substr(0, 60));
  }
  if (job.line % options_.shares != options_.share_rank) return;
  if (journal_.done(job.line, request.custom_id)) return;
  open_.insert(job.line);
  if (!request.problem.empty()) return finish(job.line, batch_refusal(job.line, request), true);
  pending_bytes_ += request.body.size();
  pool_.add(std::move(job));
}

void BatchRunner::start_requests() {
  while (!pool_.empty() && static_cast<size_t>(progress_.running) < start_limit_)
    start(pool_.take());
}

void BatchRunner::start(BatchJob job) {
  pending_bytes_ -= job.request.body.size();
  ++progress_.running;
  HttpRequest http{.method = "POST", .path = job.request.url, .body = std::move(job.request.body)};
  auto done = [this, line = job.line, request = job.request](HttpResponse response) {
    on_response(line, request, std::move(response));
  };
  const auto exchange = std::make_shared<BatchExchange>(work_, std::move(http), std::move(done));
  router_.handle(exchange);
  exchange->forget_body();
}

void BatchRunner::on_response(int64_t line, const BatchLine& request, HttpResponse response) {
  --progress_.running;
  // What a cancelled run did not finish has no result: it runs again next time.
  if (cancelled_ && response.status == 503) return;
  server_errors_in_a_row_ = response.status >= 500 ? server_errors_in_a_row_ + 1 : 0;
  if (server_errors_in_a_row_ >= kServerErrorsInARow)
    fail(ErrorKind::kUnavailable,
         "{} requests in a row failed, the last one at line {}; results so far are kept",
         kServerErrorsInARow, line);
  finish(line,
         batch_result(line, request,
                      {.status = response.status,
                       .request_id = random_id("req_"),
                       .body = std::move(response.body)}),
         response.status != 200);
}

void BatchRunner::finish(int64_t line, std::string result, bool failed) {
  open_.erase(line);
  pending_bytes_ += result.size();
  ready_.emplace(line, Result{std::move(result), failed});
}

void BatchRunner::write_results() {
  std::string text;
  while (!ready_.empty()) {
    const auto first = ready_.begin();
    if (options_.input_order && !open_.empty() && *open_.begin() < first->first) break;
    text += first->second.text;
    pending_bytes_ -= first->second.text.size();
    ++progress_.done;
    progress_.failed += first->second.failed;
    ready_.erase(first);
  }
  if (!text.empty()) journal_.append(text);
}

void BatchRunner::obey(BatchCommand command) {
  using Clock = std::chrono::steady_clock;
  if (command == BatchCommand::kRun) return;
  if (!progress_.draining) {
    progress_.draining = true;
    drain_end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                    std::chrono::duration<double>(options_.grace_seconds));
  }
  if (cancelled_ || (command == BatchCommand::kDrain && Clock::now() < drain_end_)) return;
  cancelled_ = true;
  service_.engine.drain(0);
}

void BatchRunner::wait(bool more_to_read) const {
  if (more_to_read && !progress_.draining) return;
  const bool wants_input = !progress_.draining && has_room() && !input_.at_end();
  pollfd ready[] = {{.fd = work_->descriptor(), .events = POLLIN, .revents = 0},
                    {.fd = input_.descriptor(), .events = POLLIN, .revents = 0}};
  poll(ready, wants_input ? 2 : 1, kTickMs);
}

}  // namespace peregrine
