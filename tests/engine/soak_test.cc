// A random load for as long as one likes: memory stays flat, the books balance, answers stay right.
//
// ./test runs a few rounds. PEREGRINE_SOAK_SECONDS=1800 makes it half an hour, with a line of
// figures every ten seconds.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <random>

#include "engine/generator.h"
#include "engine/model_impl.h"
#include "peregrine/engine.h"
#include "support/fixtures.h"

namespace peregrine::test {
namespace {

constexpr int kContext = 512;       // tokens
constexpr int kRoundRequests = 12;  // in flight together, more than may run
constexpr int kShortRounds = 6;     // without PEREGRINE_SOAK_SECONDS
constexpr int kCheckedOneIn = 8;    // requests compared with running alone
constexpr uint64_t kStateBytes = 8 << 20;

// What malloc keeps of memory that came and went; a leak of a kilobyte a request passes it within
// half an hour.
constexpr int64_t kSlackBytes = 24 << 20;

int64_t resident_bytes() {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

struct Outcome {
  std::vector<int32_t> tokens;
  EndReason reason = EndReason::kStop;
  std::string error;
  Usage usage;
};

class Soak {
 public:
  Soak()
      : model_(Model::load(model_path("tiny"), {.threads = 1})),
        engine_(model_, {.max_running = 6,
                         .context_tokens = kContext,
                         .kv_bytes = 168 << 10,
                         .prefill = PrefillMode::kExact,
                         .prefix_cache = PrefixCacheMode::kExact,
                         .prefix_cache_bytes = kStateBytes}) {}

  void round() {
    std::vector<Request> requests;
    for (int i = 0; i < kRoundRequests; ++i) requests.push_back(draw_request());
    outcomes_.assign(kRoundRequests, {});
    ended_ = 0;
    std::vector<RequestId> ids;
    std::vector<bool> cut(kRoundRequests, false);
    for (size_t i = 0; i < kRoundRequests; ++i) {
      Request request = requests[i];
      cut[i] = draw(6) == 0;
      if (cut[i])
        request.accept = [left = static_cast<size_t>(draw(20))](auto tokens) mutable {
          const size_t taken = std::min(left, tokens.size());
          left -= taken;
          return taken;
        };
      ids.push_back(engine_.submit(std::move(request), sink(i)));
      if (draw(4) == 0) wait_for(static_cast<int>(i) / 2);
      if (draw(8) == 0) {
        const auto victim = static_cast<size_t>(draw(static_cast<int>(i) + 1));
        engine_.cancel(ids[victim]);
        cut[victim] = true;
      }
    }
    check_books();  // while they run
    wait_for(kRoundRequests);
    check_books();
    for (size_t i = 0; i < kRoundRequests; ++i) check_outcome(requests[i], outcomes_[i], cut[i]);
    for (size_t i = 0; i < kRoundRequests; ++i) remember(requests[i], outcomes_[i]);
  }

  EngineStats stats() const { return engine_.stats(); }
  int64_t checked() const { return checked_; }

 private:
  int draw(int below) { return static_cast<int>(random_() % static_cast<uint64_t>(below)); }

  // A new conversation or the next turn of one that was, long enough to crowd the pages.
  Request draw_request() {
    static const char* const kTexts[] = {"Tell me a story about a brave fox named Ruby.",
                                         "What is 468 + 357?", "Thanks", "What does bridge mean?",
                                         "Count from 3 to 9."};
    Request r;
    if (!turns_.empty() && draw(2) == 0)
      r.prompt = turns_[static_cast<size_t>(draw(static_cast<int>(turns_.size())))];
    std::string text = "<｜User｜>";
    for (int n = 1 + draw(16); n > 0; --n) text += std::string(kTexts[draw(5)]) + " ";
    text += "<｜Assistant｜></think>";
    if (r.prompt.empty()) text = "<｜begin▁of▁sentence｜>" + text;
    const std::vector<int32_t> ids = model_->encode(text);
    r.prompt.insert(r.prompt.end(), ids.begin(), ids.end());
    r.sampling.temperature = draw(2);
    r.sampling.seed = random_();
    if (draw(4) == 0) r.sampling.logprobs = 2;
    if (draw(4) == 0) r.sampling.repetition_penalty = 1.2;
    r.max_tokens = 1 + draw(60);
    r.stop_ids = {1};
    r.priority = draw(3);
    if (draw(2) == 0) r.draft = {.mode = DraftMode::kFixed, .drafts = 5};
    return r;
  }

  std::function<void(const Event&)> sink(size_t i) {
    return [this, i](const Event& event) {
      const std::lock_guard lock(mutex_);
      Outcome& outcome = outcomes_[i];
      outcome.tokens.insert(outcome.tokens.end(), event.tokens.begin(), event.tokens.end());
      if (!event.finished) return;
      outcome.reason = event.reason;
      outcome.error = event.error;
      outcome.usage = *event.usage;
      ++ended_;
      changed_.notify_all();
    };
  }
  void wait_for(int ended) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ >= ended; });
  }

  void check_books() {
    EXPECT_EQ(engine_.check_integrity(), "");
    const EngineStats stats = engine_.stats();
    EXPECT_LE(stats.pages_used, stats.pages_total);
    EXPECT_LE(stats.pages_cached, stats.pages_used);
  }

  void check_outcome(const Request& request, const Outcome& outcome, bool cut) {
    ASSERT_NE(outcome.reason, EndReason::kError) << outcome.error;
    if (draw(kCheckedOneIn) != 0) return;
    ++checked_;
    std::vector<int32_t> expected = alone(request);
    if (cut) expected.resize(std::min(expected.size(), outcome.tokens.size()));
    EXPECT_EQ(outcome.tokens, expected)
        << "request " << engine_.stats().requests << ": prompt of " << request.prompt.size()
        << " tokens, " << outcome.usage.cached_tokens << " of them cached, "
        << outcome.usage.preemptions << " preemptions, temperature " << request.sampling.temperature
        << ", repetition penalty " << request.sampling.repetition_penalty << ", drafts "
        << request.draft.drafts << ", cut " << cut;
  }

  std::vector<int32_t> alone(const Request& r) const {
    Session session(model_, {.context_tokens = kContext, .draft_rows = kMaxDrafts});
    session.sync(r.prompt);
    GenerateOptions options{.sampling = r.sampling,
                            .max_tokens = r.max_tokens,
                            .stop_ids = r.stop_ids,
                            // What an engine never samples.
                            .masked_ids = model_->impl().tokenizer.masked_ids(model_->vocab_size()),
                            .draft = r.draft};
    Generator generator(session, options);
    std::vector<int32_t> out;
    while (generator.end() == GenerateEnd::kRunning)
      for (const int32_t token : generator.next()) out.push_back(token);
    return out;
  }

  // Some conversations go on; the next turn and its answer still fit.
  void remember(const Request& request, const Outcome& outcome) {
    std::vector<int32_t> turn = request.prompt;
    turn.insert(turn.end(), outcome.tokens.begin(), outcome.tokens.end());
    if (turn.size() > kContext / 2) return;
    if (turns_.size() < 32) {
      turns_.push_back(std::move(turn));
    } else {
      turns_[static_cast<size_t>(draw(32))] = std::move(turn);
    }
  }

  const std::shared_ptr<const Model> model_;
  Engine engine_;
  std::mt19937_64 random_{3};
  std::vector<std::vector<int32_t>> turns_;
  int64_t checked_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Outcome> outcomes_;
  int ended_ = 0;
};

TEST(EngineSoak, MemoryStaysFlatAndAnswersRight) {
  using Clock = std::chrono::steady_clock;
  const char* wanted = std::getenv("PEREGRINE_SOAK_SECONDS");
  const double seconds = wanted == nullptr ? 0 : std::atof(wanted);
  const auto begin = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  Soak soak;
  int64_t settled = 0, peak = 0;  // resident bytes after a quarter, and the most since then
  double next_line = 10;
  for (int round = 1; seconds > 0 ? elapsed() < seconds : round <= kShortRounds; ++round) {
    soak.round();
    if (HasFatalFailure() || HasNonfatalFailure()) break;
    const double share = seconds > 0 ? elapsed() / seconds : 1.0 * round / kShortRounds;
    const int64_t resident = resident_bytes();
    if (share < 0.25 || settled == 0) settled = resident;
    peak = std::max(peak, share < 0.25 ? 0 : resident);
    if (seconds == 0 || elapsed() < next_line) continue;
    next_line += 10;
    const EngineStats stats = soak.stats();
    std::printf("%6.0f s, %lld requests, %lld tokens, %.1f MB resident\n", elapsed(),
                static_cast<long long>(stats.requests), static_cast<long long>(stats.output_tokens),
                static_cast<double>(resident) / 1e6);
    std::fflush(stdout);
  }
  const EngineStats stats = soak.stats();
  std::printf(
      "%lld requests, %lld cancelled, %lld preemptions, %lld of %lld prompt tokens cached, "
      "%lld compared; resident %.1f MB after a quarter, at most %.1f MB later\n",
      static_cast<long long>(stats.requests), static_cast<long long>(stats.cancelled),
      static_cast<long long>(stats.preemptions), static_cast<long long>(stats.cached_tokens),
      static_cast<long long>(stats.prompt_tokens), static_cast<long long>(soak.checked()),
      static_cast<double>(settled) / 1e6, static_cast<double>(peak) / 1e6);
  EXPECT_GT(soak.checked(), 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LE(peak, settled + static_cast<int64_t>(kStateBytes) + kSlackBytes);
#endif
}

}  // namespace
}  // namespace peregrine::test
