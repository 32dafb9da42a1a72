// The engine on the tiny model: what comes out of a crowd equals what comes out alone.
#include "peregrine/engine.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <map>
#include <mutex>

#include "engine/generator.h"
#include "engine/model_impl.h"
#include "engine/tiny.h"
#include "peregrine/session.h"
#include "support/fixtures.h"

namespace peregrine::test {
namespace {

std::shared_ptr<const Model> tiny() {
  static const std::shared_ptr<const Model> model = Model::load(model_path("tiny"), {.threads = 1});
  return model;
}

// Collects the events of requests until all have ended.
class Collector {
 public:
  struct Outcome {
    std::vector<int32_t> tokens;
    std::vector<TokenLogprobs> logprobs;
    bool finished = false;
    EndReason reason = EndReason::kStop;
    std::string error;
    Usage usage;
  };

  std::function<void(const Event&)> sink(int key) {
    {
      const std::lock_guard lock(mutex_);
      ++expected_;
    }
    return [this, key](const Event& event) {
      const std::lock_guard lock(mutex_);
      Outcome& o = outcomes_[key];
      EXPECT_FALSE(o.finished) << "an event after the end";
      o.tokens.insert(o.tokens.end(), event.tokens.begin(), event.tokens.end());
      o.logprobs.insert(o.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
      if (!event.finished) return;
      o.finished = true;
      o.reason = event.reason;
      o.error = event.error;
      o.usage = *event.usage;
      ++ended_;
      all_ended_.notify_all();
    };
  }
  void forget_one() {
    const std::lock_guard lock(mutex_);
    --expected_;
  }
  void wait() {
    std::unique_lock lock(mutex_);
    all_ended_.wait(lock, [this] { return ended_ == expected_; });
  }
  const Outcome& operator[](int key) const { return outcomes_.at(key); }

 private:
  std::mutex mutex_;
  std::condition_variable all_ended_;
  std::map<int, Outcome> outcomes_;
  int expected_ = 0, ended_ = 0;
};

std::vector<int32_t> chat(const std::string& text) {
  return tiny()->encode("<｜begin▁of▁sentence｜><｜User｜>" + text + "<｜Assistant｜></think>");
}

Request request(const std::string& text, double temperature, int drafts, int max_tokens = 60) {
  Request r;
  r.prompt = chat(text);
  r.sampling.temperature = temperature;
  if (temperature > 0) r.sampling.seed = 7;
  r.sampling.logprobs = 3;
  r.max_tokens = max_tokens;
  r.stop_ids = {1};
  if (drafts > 0) r.draft = {.mode = DraftMode::kFixed, .drafts = drafts};
  return r;
}

// What a session of its own gives, remembered: many scenarios ask for the same.
struct Alone {
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;
};

Alone run_alone(const Request& r, PrefillMode prefill) {
  Session session(tiny(), {.prefill = prefill, .draft_rows = kMaxDrafts});
  session.sync(r.prompt);
  GenerateOptions options{.sampling = r.sampling,
                          .max_tokens = r.max_tokens,
                          .stop_ids = r.stop_ids,
                          .masked_ids = tiny()->impl().tokenizer.masked_ids(tiny()->vocab_size()),
                          .draft = r.draft};
  Generator generator(session, options);
  Alone out;
  while (generator.end() == GenerateEnd::kRunning) {
    for (const int32_t token : generator.next()) out.tokens.push_back(token);
    out.logprobs.insert(out.logprobs.end(), generator.logprobs().begin(),
                        generator.logprobs().end());
  }
  return out;
}

// Tokens equal, and the log-probabilities to the bit: they are a function of the logits' bits.
void expect_equal(const Collector::Outcome& got, const Alone& want, const std::string& what) {
  EXPECT_EQ(got.tokens, want.tokens) << what;
  ASSERT_EQ(got.logprobs.size(), want.logprobs.size()) << what;
  for (size_t i = 0; i < want.logprobs.size(); ++i) {
    EXPECT_EQ(got.logprobs[i].chosen.logprob, want.logprobs[i].chosen.logprob)
        << what << " token " << i;
    ASSERT_EQ(got.logprobs[i].top.size(), want.logprobs[i].top.size()) << what;
    for (size_t k = 0; k < want.logprobs[i].top.size(); ++k) {
      EXPECT_EQ(got.logprobs[i].top[k].id, want.logprobs[i].top[k].id) << what << " token " << i;
      EXPECT_EQ(got.logprobs[i].top[k].logprob, want.logprobs[i].top[k].logprob)
          << what << " token " << i;
    }
  }
}

const char* const kPrompts[] = {"Tell me a story about a brave fox named Ruby.",
                                "What is 468 + 357?",
                                "Thanks",
                                "What does bridge mean?",
                                "What is the capital of France?",
                                "Tell me a story about a shy owl named Hugo.",
                                "Count from 3 to 9."};

TEST(EngineLoop, CrowdEqualsAlone) {
  for (const bool overlap : {true, false}) {
    Engine engine(tiny(), {.max_running = 4,
                           .context_tokens = 1024,
                           .kv_bytes = 8 << 20,
                           .prefill = PrefillMode::kExact,
                           .prefix_cache = PrefixCacheMode::kOff,
                           .overlap = overlap});
    Collector collector;
    std::vector<Request> requests;
    for (const char* prompt : kPrompts)
      for (const double temperature : {0.0, 1.0})
        for (const int drafts : {0, 5}) requests.push_back(request(prompt, temperature, drafts));
    for (size_t i = 0; i < requests.size(); ++i)
      engine.submit(requests[i], collector.sink(static_cast<int>(i)));
    collector.wait();
    EXPECT_EQ(engine.check_integrity(), "");  // and nothing runs on the model any more
    for (size_t i = 0; i < requests.size(); ++i)
      expect_equal(collector[static_cast<int>(i)], run_alone(requests[i], PrefillMode::kExact),
                   "request " + std::to_string(i) + (overlap ? " overlapped" : " plain"));
    const EngineStats stats = engine.stats();
    EXPECT_EQ(stats.pages_used, 0);
    EXPECT_EQ(stats.finished, static_cast<int64_t>(requests.size()));
  }
}

// Pages for little more than one sequence: they take them from each other all the time. However
// slowly prompts are read beside decoding, the answers are long enough to meet: the first decodes a
// token a step, longer than the next needs to read its prompt a row a step and to fill the pool.
TEST(EngineLoop, PreemptedSequencesGiveTheSameBits) {
  for (const PrefillMode prefill : {PrefillMode::kExact, PrefillMode::kReplay}) {
    Engine engine(tiny(), {.max_running = 4,
                           .context_tokens = 320,
                           .kv_bytes = 60 << 10,
                           .prefill = prefill,
                           .prefix_cache = PrefixCacheMode::kOff});
    Collector collector;
    std::vector<Request> requests;
    for (const char* prompt : std::span(kPrompts).first(static_cast<size_t>(reduced(4, 2))))
      for (const double temperature : {0.0, 1.0}) {
        Request r = request(prompt, temperature, temperature == 0 ? 0 : 5, 160);
        // Longer than the window, so that replay cuts.
        const auto more = tiny()->encode(" Once upon a time there was a small house by the sea.");
        for (int i = 0; i < 5; ++i) r.prompt.insert(r.prompt.begin() + 2, more.begin(), more.end());
        r.stop_ids = {};
        requests.push_back(r);
      }
    for (size_t i = 0; i < requests.size(); ++i)
      engine.submit(requests[i], collector.sink(static_cast<int>(i)));
    collector.wait();
    EXPECT_EQ(engine.check_integrity(), "");  // and nothing runs on the model any more
    for (size_t i = 0; i < requests.size(); ++i)
      expect_equal(collector[static_cast<int>(i)], run_alone(requests[i], prefill),
                   "request " + std::to_string(i));
    EXPECT_GT(engine.stats().preemptions, 0);
    EXPECT_EQ(engine.stats().pages_used, 0);
  }
}

// The second turn of a long conversation computes little more than what is new, and in exact mode
// exactly what an engine without a cache computes.
TEST(EngineLoop, SecondTurnReusesTheFirst) {
  Request first = request("Tell me a story about a brave fox named Ruby.", 0, 5, 40);
  const auto filler =
      tiny()->encode(" The pass key is kept in a box. It was a long and quiet day by the river.");
  while (first.prompt.size() < static_cast<size_t>(reduced(1500, 3)))
    first.prompt.insert(first.prompt.begin() + 2, filler.begin(), filler.end());
  const auto turn = [&](Engine& engine, const Request& r) {
    Collector collector;
    engine.submit(r, collector.sink(0));
    collector.wait();
    EXPECT_EQ(engine.check_integrity(), "");
    return collector[0];
  };
  for (const PrefixCacheMode mode : {PrefixCacheMode::kExact, PrefixCacheMode::kReplay}) {
    Engine engine(tiny(), {.max_running = 2,
                           .context_tokens = 4096,
                           .kv_bytes = 16 << 20,
                           .prefill = PrefillMode::kExact,
                           .prefix_cache = mode});
    const auto one = turn(engine, first);
    EXPECT_EQ(one.usage.cached_tokens, 0);
    Request second = first;
    second.prompt.insert(second.prompt.end(), one.tokens.begin(), one.tokens.end());
    const auto question = tiny()->encode("<｜User｜>What is 12 + 30?<｜Assistant｜></think>");
    second.prompt.insert(second.prompt.end(), question.begin(), question.end());
    const auto two = turn(engine, second);
    const int64_t computed = static_cast<int64_t>(second.prompt.size()) - two.usage.cached_tokens;
    EXPECT_LT(computed, static_cast<int64_t>(first.prompt.size()) / 20);
    expect_equal(two, run_alone(second, PrefillMode::kExact), "second turn");
    // The same prompt again: all but its last token is there.
    const auto again = turn(engine, first);
    EXPECT_EQ(again.usage.cached_tokens, static_cast<int64_t>(first.prompt.size()) - 1);
    expect_equal(again, run_alone(first, PrefillMode::kExact), "first turn again");
    EXPECT_EQ(engine.check_integrity(), "");
  }
}

TEST(EngineLoop, CancelKeepsWhatWasComputed) {
  Engine engine(tiny(), {.max_running = 2,
                         .context_tokens = 4096,
                         .kv_bytes = 16 << 20,
                         .prefill = PrefillMode::kExact,
                         /* any length serves */ .prefix_cache = PrefixCacheMode::kReplay});
  Request r = request("Tell me a story about a brave fox named Ruby.", 0, 0, 2000);
  r.stop_ids = {};
  std::promise<void> started, ended;
  int64_t emitted = 0;
  EndReason reason = EndReason::kStop;
  const RequestId id = engine.submit(r, [&](const Event& event) {
    if (emitted < 80 && emitted + static_cast<int64_t>(event.tokens.size()) >= 80)
      started.set_value();
    emitted += static_cast<int64_t>(event.tokens.size());
    if (event.finished) {
      reason = event.reason;
      ended.set_value();
    }
  });
  started.get_future().wait();
  engine.cancel(id);
  ended.get_future().wait();
  EXPECT_EQ(reason, EndReason::kCancelled);
  const auto want = run_alone(
      r = request("Tell me a story about a brave fox named Ruby.", 0, 0, 90), PrefillMode::kExact);
  Request longer = r;
  longer.prompt.insert(longer.prompt.end(), want.tokens.begin(), want.tokens.begin() + 79);
  Collector collector;
  engine.submit(longer, collector.sink(0));
  collector.wait();
  EXPECT_GE(collector[0].usage.cached_tokens, static_cast<int64_t>(longer.prompt.size()) - 3);
}

TEST(EngineLoop, RefusesWhatCanNeverRun) {
  Engine engine(tiny(),
                {.max_running = 1, .max_waiting = 2, .context_tokens = 128, .kv_bytes = 64 << 10});
  const auto sentence = [&](Request r) -> std::string {
    try {
      engine.submit(std::move(r), {});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  Request r = request("Thanks", 0, 0);
  r.prompt.clear();
  EXPECT_EQ(sentence(r), "empty prompt: expected at least one token");
  r.prompt.assign(128, 5);
  EXPECT_EQ(sentence(r), "a prompt of 128 tokens does not fit the context of 128 tokens");
  r.prompt = {5000};
  EXPECT_EQ(sentence(r), "prompt token 5000 at position 0: expected 0 to 4095");
  r = request("Thanks", 0, 0);
  r.max_tokens = 0;
  EXPECT_EQ(sentence(r), "max_tokens is 0, expected at least 1");
  r = request("Thanks", 3, 0);
  EXPECT_NE(sentence(r).find("temperature"), std::string::npos);
  r = request("Thanks", 0, 17);
  EXPECT_EQ(sentence(r), "draft block of 17: expected 1 to 16");
}

TEST(EngineLoop, FullQueueAndDrain) {
  Engine engine(tiny(),
                {.max_running = 1, .max_waiting = 2, .context_tokens = 256, .kv_bytes = 4 << 20});
  Collector collector;
  int accepted = 0;
  bool refused = false;
  for (int i = 0; i < 50 && !refused; ++i) {
    try {
      engine.submit(request("Thanks", 0, 0, 200), collector.sink(i));
      ++accepted;
    } catch (const Error& error) {
      refused = true;
      EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
      collector.forget_one();
    }
  }
  EXPECT_TRUE(refused);
  EXPECT_GE(accepted, 2);
  engine.drain(0);
  collector.wait();
  EXPECT_EQ(engine.stats().running, 0);
  EXPECT_THROW(engine.submit(request("Thanks", 0, 0), {}), Error);
}

}  // namespace
}  // namespace peregrine::test
