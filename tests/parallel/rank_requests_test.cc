// Requests given to one rank and answered by several: the mail that carries them, and a soak in
// which they arrive, end early and are cancelled at random while experts move.
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <random>

#include "model_group.h"
#include "parallel/expert_reader.h"
#include "parallel/request_dispatcher.h"
#include "parallel/request_worker.h"
#include "parallel/vote_channel.h"

namespace peregrine::test {
namespace {

// -- mail ----------------------------------------------------------------------------------------

TEST(RequestMail, LongRecordsGoOnInTheNextVote) {
  MailStream from, to;
  Bytes body(kMostMailBytes * 2 + 100);
  for (size_t i = 0; i < body.size(); ++i) body[i] = static_cast<std::byte>(i * 7 + i / 256);
  from.put({.kind = MailKind::kEvent, .id = 7, .body = body});
  from.put({.kind = MailKind::kCancel, .id = 8, .body = {}});
  int votes = 0;
  std::vector<MailRecord> arrived;
  while (arrived.size() < 2) {
    Bytes message;
    from.pack(message);
    ASSERT_LE(message.size(), kMostMailBytes);
    ASSERT_FALSE(message.empty());
    to.unpack(message);
    ++votes;
    while (auto record = to.next()) arrived.push_back(std::move(*record));
  }
  EXPECT_EQ(votes, 3);
  EXPECT_EQ(arrived[0].id, 7u);
  EXPECT_TRUE(arrived[0].body == body);
  EXPECT_EQ(arrived[1].kind, MailKind::kCancel);
}

TEST(RequestMail, RequestsAndEventsArriveAsTheyWere) {
  Request sent{.prompt = {5, 6, 7}, .max_tokens = 9, .stop_ids = {1}, .priority = -2};
  sent.sampling = {.temperature = 0.5,
                   .top_p = 0.9,
                   .top_k = 40,
                   .min_p = 0.01,
                   .repetition_penalty = 1.1,
                   .presence_penalty = 0.2,
                   .frequency_penalty = -0.3,
                   .logit_bias = {{4, 1.5f}, {9, -100.0f}},
                   .seed = 77,
                   .logprobs = 3};
  sent.draft = {.mode = DraftMode::kFixed, .drafts = 4, .threshold = 0.25};
  sent.deadline_seconds = 12;
  const Bytes bytes = write_request(sent);
  EXPECT_TRUE(write_request(read_request(bytes)) == bytes);
  const Request r = read_request(bytes);
  EXPECT_EQ(r.prompt, sent.prompt);
  EXPECT_EQ(r.sampling.logit_bias, sent.sampling.logit_bias);
  EXPECT_EQ(r.sampling.seed, sent.sampling.seed);
  EXPECT_EQ(r.draft.drafts, 4);
  EXPECT_EQ(r.priority, -2);
  for (size_t cut = 0; cut < bytes.size(); ++cut)
    EXPECT_THROW(read_request(std::span(bytes).first(cut)), Error) << cut;

  const std::vector<int32_t> tokens = {3, 4};
  const std::vector<TokenLogprobs> logprobs = {{{3, -1.0}, {{3, -1.0}, {8, -2.0}}},
                                               {{4, -3.0}, {}}};
  Usage usage;
  usage.output_tokens = 2;
  const MailEvent event = read_event(write_event({.tokens = tokens,
                                                  .logprobs = logprobs,
                                                  .finished = true,
                                                  .reason = EndReason::kError,
                                                  .error = "no",
                                                  .usage = &usage}));
  EXPECT_EQ(event.tokens, tokens);
  ASSERT_EQ(event.logprobs.size(), 2u);
  EXPECT_EQ(event.logprobs[0].top.at(1).id, 8);
  EXPECT_EQ(event.reason, EndReason::kError);
  EXPECT_EQ(event.error, "no");
  EXPECT_EQ(event.usage.output_tokens, 2);
}

// -- soak ----------------------------------------------------------------------------------------

// Steps of the soak; PEREGRINE_SOAK_STEPS asks for more.
int64_t soak_steps() {
  const char* text = std::getenv("PEREGRINE_SOAK_STEPS");
  return text ? std::atoll(text) : reduced(48, 2);
}

// What the requests of the pool give on one rank.
std::vector<Ids> expected_tokens(const std::vector<Request>& pool) {
  std::vector<Ids> tokens(pool.size());
  std::vector<std::promise<void>> ends(pool.size());
  Engine engine(tiny_model(), small_engine());
  for (size_t i = 0; i < pool.size(); ++i)
    engine.submit(pool[i], [&, i](const Event& event) {
      tokens[i].insert(tokens[i].end(), event.tokens.begin(), event.tokens.end());
      if (event.finished) ends[i].set_value();
    });
  for (auto& end : ends) end.get_future().wait();
  return tokens;
}

// Clients of rank 0: keeps requests of the pool running and compares every answer.
class Clients {
 public:
  Clients(const std::vector<Request>& pool, const std::vector<Ids>& expected)
      : pool_(pool), expected_(expected) {}

  // One arrival; some are to end early, some are cancelled soon.
  void arrive(Engine& engine, std::mt19937& random) {
    const size_t which = random() % pool_.size();
    auto answer = std::make_shared<Ids>();
    Request request = pool_[which];
    size_t stop_at = expected_[which].size();
    if (random() % 4 == 0) {
      stop_at = random() % stop_at;
      request.accept = [answer, stop_at](std::span<const int32_t> tokens) {
        return std::min(tokens.size(), stop_at - std::min(stop_at, answer->size()));
      };
    }
    const bool cancelled = random() % 8 == 0;
    {
      const std::lock_guard lock(mutex_);
      ++running_;
    }
    const RequestId id =
        engine.submit(std::move(request), [this, which, answer, stop_at](const Event& event) {
          answer->insert(answer->end(), event.tokens.begin(), event.tokens.end());
          if (!event.finished) return;
          const Ids& all = expected_[which];
          const bool whole = event.reason != EndReason::kCancelled;
          const bool begins = answer->size() <= all.size() &&
                              std::equal(answer->begin(), answer->end(), all.begin());
          const std::lock_guard lock(mutex_);
          if (!begins || event.reason == EndReason::kError || (whole && answer->size() != stop_at))
            ++wrong_;
          ++ended_;
          --running_;
          changed_.notify_all();
        });
    if (cancelled) engine.cancel(id);
  }
  // Until fewer than `most` run.
  void wait_below(int most) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return running_ < most; });
  }
  int wrong() const { return wrong_; }
  int ended() const { return ended_; }

 private:
  const std::vector<Request>& pool_;
  const std::vector<Ids>& expected_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int running_ = 0, ended_ = 0, wrong_ = 0;
};

// Every collective is compared by tag, layer, shape and number on receipt, so a mismatch ends the
// group with an error.
TEST(RankRequests, SoakWithRandomArrivals) {
  const std::vector<Request> pool = mixed_requests(8);
  const std::vector<Ids> expected = expected_tokens(pool);
  for (const int ranks : {2, 4}) {
    ModelGroup group(ranks);
    Clients clients(pool, expected);
    std::vector<EngineStats> by_rank;
    const auto errors = ThreadGroup::run(ranks, [&](int rank) {
      group.exchange(rank).balance(experts_of_layers(*group.model(rank)),
                                   checkpoint_experts(group.model(rank)),
                                   {.window_steps = 3, .interval_steps = 9, .redundant = 2});
      if (rank > 0) {
        RequestWorker worker;
        VoteChannel votes(group.threads().open(rank, 1, /*timeout_seconds=*/60), &worker);
        Voting voting(votes, {});
        Engine engine(group.model(rank), small_engine(), &voting);
        return worker.serve(engine);
      }
      RequestDispatcher dispatcher(ranks, ranks);
      VoteChannel votes(group.threads().open(rank, 1, /*timeout_seconds=*/60), &dispatcher);
      Voting voting(votes, {}, &dispatcher);
      Engine engine(group.model(rank), small_engine(), &voting);
      std::mt19937 random(static_cast<uint32_t>(ranks));
      while (engine.stats_by_rank()[0].steps < soak_steps()) {
        for (uint32_t burst = random() % 6; burst > 0; --burst) clients.arrive(engine, random);
        clients.wait_below(1 + static_cast<int>(random() % 24));
      }
      clients.wait_below(1);
      EXPECT_EQ(engine.check_integrity(), "");
      by_rank = engine.stats_by_rank();
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
    EXPECT_EQ(clients.wrong(), 0);
    EXPECT_GT(clients.ended(), 0);
    EXPECT_GT(group.exchange(0).balance_stats().rearrangements, 0);
    ASSERT_EQ(by_rank.size(), static_cast<size_t>(ranks));
    if (std::getenv("PEREGRINE_SOAK_STEPS"))
      std::printf("%d ranks: %ld steps, %d requests, %ld re-arrangements, %d wrong\n", ranks,
                  static_cast<long>(by_rank[0].steps), clients.ended(),
                  static_cast<long>(group.exchange(0).balance_stats().rearrangements),
                  clients.wrong());
  }
}

}  // namespace
}  // namespace peregrine::test
