// The engine on the tiny model: what comes out of a crowd equals what comes out alone.
#include "peregrine/engine.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>

#include "engine/generator.h"
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
      if (!event.finished) return;
      o.finished = true;
      o.reason = event.reason;
      o.error = event.error;
      o.usage = *event.usage;
      ++ended_;
      all_ended_.notify_all();
    };
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
  r.max_tokens = max_tokens;
  r.stop_ids = {1};
  if (drafts > 0) r.draft = {.mode = DraftMode::kFixed, .drafts = drafts};
  return r;
}

std::vector<int32_t> alone(const Request& r) {
  Session session(tiny(), {.draft_rows = kMaxDrafts});
  session.sync(r.prompt);
  GenerateOptions options{.sampling = r.sampling,
                          .max_tokens = r.max_tokens,
                          .stop_ids = r.stop_ids,
                          .masked_ids = {},
                          .draft = r.draft};
  Generator generator(session, options);
  std::vector<int32_t> out;
  while (generator.end() == GenerateEnd::kRunning)
    for (const int32_t token : generator.next()) out.push_back(token);
  return out;
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
    for (size_t i = 0; i < requests.size(); ++i)
      EXPECT_EQ(collector[static_cast<int>(i)].tokens, alone(requests[i]))
          << "request " << i << " overlap " << overlap;
    EXPECT_EQ(engine.check_integrity(), "");
    const EngineStats stats = engine.stats();
    EXPECT_EQ(stats.pages_used, 0);
    EXPECT_EQ(stats.finished, static_cast<int64_t>(requests.size()));
  }
}

}  // namespace
}  // namespace peregrine::test
