// Expert parallelism over threads: layers of experts, whole steps, sessions and engines of several
// ranks against a single process, bit for bit.
#include "parallel/rank_experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <random>

#include "checkpoint/inventory.h"
#include "engine/model_impl.h"
#include "engine/tiny.h"
#include "formats/bf16.h"
#include "formats/quantize.h"
#include "mixed_requests.h"
#include "model_group.h"
#include "parallel/distribution.h"
#include "parallel/expert_reader.h"
#include "parallel/vote_channel.h"
#include "peregrine/engine.h"
#include "session_rows.h"
#include "thread_group.h"

namespace peregrine::test {
namespace {

// The claim that lets rows travel as FP8: quantising what codes mean gives the same values again.
TEST(RankExperts, QuantisingTwiceIsQuantisingOnce) {
  std::mt19937 random(7);
  std::vector<float> row(kActBlock), once, twice;
  for (int i = 0; i < 20000; ++i) {
    const int exponent = static_cast<int>(random() % 40) - 30;
    for (float& x : row) {
      const float unit = static_cast<float>(static_cast<int32_t>(random())) * 0x1p-31f;
      x = round_bf16(std::ldexp(unit, exponent - static_cast<int>(random() % 20)));
    }
    // The largest element meets every mantissa, around the point where the scale changes.
    row[random() % kActBlock] = std::ldexp(1.75f + static_cast<float>(i % 256) / 1024, exponent);
    once = row;
    act_quant_in_place(once.data(), kActBlock);
    twice = once;
    act_quant_in_place(twice.data(), kActBlock);
    ASSERT_EQ(std::memcmp(once.data(), twice.data(), kActBlock * sizeof(float)), 0) << i;
  }
}

// Rows, routing and output of one call with four experts a row.
struct Call {
  static constexpr int64_t kActive = 4;
  std::vector<float> u, out, weights;
  std::vector<int32_t> ids;
  int64_t rows, dim;

  Call(const ModelConfig& c, int64_t rows_in, uint32_t seed) : rows(rows_in), dim(c.dim) {
    std::mt19937 random(seed);
    const auto unit = [&] { return static_cast<float>(static_cast<int32_t>(random())) * 0x1p-31f; };
    for (int64_t i = 0; i < rows * dim; ++i) u.push_back(round_bf16(unit()));
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<int32_t> all(static_cast<size_t>(c.n_routed_experts));
      for (size_t e = 0; e < all.size(); ++e) all[e] = static_cast<int32_t>(e);
      std::shuffle(all.begin(), all.end(), random);
      all.resize(kActive);
      std::sort(all.begin(), all.end());
      ids.insert(ids.end(), all.begin(), all.end());
      for (int64_t k = 0; k < kActive; ++k) weights.push_back(std::abs(unit()));
    }
    out.resize(u.size());
  }
  ExpertsArgs args(const MoeWeights& w) {
    return {.u = {u.data(), rows, dim, Elem::kF32},
            .ids = {ids.data(), rows, kActive, Elem::kI32},
            .weights = {weights.data(), rows, kActive, Elem::kF32},
            .routed = w.routed,
            .shared = &w.shared,
            .out = {out.data(), rows, dim, Elem::kF32}};
  }
};

// A checkpoint's weights on a backend, all of them or one rank's.
struct Bound {
  Bound(const std::string& path, const std::string& device, ExpertExchange* exchange)
      : checkpoint(Checkpoint::open(path)),
        backend(make_backend(device, checkpoint.config, Weights::numerics(*checkpoint.source),
                             {.threads = 1})),
        weights(checkpoint.config, *checkpoint.source, *backend, exchange) {}
  Checkpoint checkpoint;
  std::unique_ptr<Backend> backend;
  Weights weights;
};

// Quantised experts travel as FP8; in f32, where sums show their order in almost every bit, as they
// are.
class OneLayer : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(OneLayer, EqualsOneProcess) {
  const auto [name, device] = GetParam();
  const std::string path = std::string(name) == "tiny" ? model_path("tiny") : data_path(name);
  constexpr int kRanks = 3;
  Bound whole(path, device, nullptr);
  ThreadGroup threads(kRanks);
  std::vector<Call> calls, expected;
  for (int rank = 0; rank < kRanks; ++rank) {
    const int64_t rows = rank == 1 ? 0 : 3 + 20 * rank;
    calls.emplace_back(whole.checkpoint.config, rows, 90u + static_cast<uint32_t>(rank));
    expected.push_back(calls.back());
    if (rows > 0) whole.backend->experts(expected.back().args(whole.weights.layers[2].moe));
  }
  const auto errors = ThreadGroup::run(kRanks, [&](int rank) {
    RankExperts exchange(threads.open(rank, 0));
    Bound mine(path, device, &exchange);
    exchange.experts(*mine.backend, 2,
                     calls[static_cast<size_t>(rank)].args(mine.weights.layers[2].moe));
  });
  for (size_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(errors[rank], "");
    ASSERT_EQ(calls[rank].out.size(), expected[rank].out.size());
    if (calls[rank].out.empty()) continue;  // a rank without rows
    EXPECT_EQ(std::memcmp(calls[rank].out.data(), expected[rank].out.data(),
                          calls[rank].out.size() * sizeof(float)),
              0)
        << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(RankExperts, OneLayer,
                         testing::Values(std::pair{"tiny", "cpu"}, std::pair{"tiny", "reference"},
                                         std::pair{"backbone_fp32", "cpu"},
                                         std::pair{"backbone_quant", "cpu"}));

TEST(RankExperts, HoldsOnlyItsShare) {
  ModelGroup group(3);
  std::vector<int> holders(16, 0);
  for (int rank = 0; rank < 3; ++rank) {
    const Weights& w = group.model(rank)->impl().weights;
    for (size_t e = 0; e < 16; ++e) holders[e] += w.layers[4].moe.routed[e].w1 ? 1 : 0;
  }
  EXPECT_EQ(holders, std::vector<int>(16, 1));
}

TEST(RankExperts, PlanOfRanksCoversTheModelOnce) {
  const ModelConfig& c = tiny_model()->impl().config();
  for (const int ranks : {1, 3, 8}) {
    const auto shares = plan_ranks(c, ranks);
    ASSERT_EQ(static_cast<int>(shares.size()), ranks);
    int64_t experts = 0;
    int next = 0;
    for (const RankShare& share : shares) {
      EXPECT_EQ(share.experts.begin, next);
      EXPECT_GT(share.experts.end, share.experts.begin);
      next = share.experts.end;
      experts += share.expert_bytes;
      EXPECT_EQ(share.other_bytes, shares[0].other_bytes);
    }
    EXPECT_EQ(next, c.n_routed_experts);
    EXPECT_EQ(experts + shares[0].other_bytes, take_inventory(c).bytes);
  }
  expect_refusal(ErrorKind::kInvalidArgument, "8 experts for 9 ranks",
                 [&] { plan_ranks(c, 9); });  // of a draft stage
}

// A session on rank 0; the other ranks lend their experts.
TEST(RankExperts, SessionEqualsOneProcess) {
  const Ids prompt = random_tokens(150, 5);
  for (const PrefillMode prefill : {PrefillMode::kExact, PrefillMode::kReplay}) {
    const SessionOptions options{.chunk_tokens = 48, .prefill = prefill, .draft_rows = 4};
    const auto rows_of = [&](std::shared_ptr<const Model> model) {
      return session_rows(std::move(model), prompt, options);
    };
    const Rows expected = rows_of(tiny_model());
    ModelGroup group(2);
    Rows found;
    const auto errors = ThreadGroup::run(2, [&](int rank) {
      const auto model = group.model(rank);
      const Model::Impl& m = model->impl();
      if (rank == 0) {
        found = rows_of(model);
        group.exchange(0).open_pass(Pass::kEnd, false);
      } else {
        while (join_pass(*m.backend, m.config(), m.weights, Pass::kNone) != Pass::kEnd) {
        }
      }
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
    EXPECT_TRUE(same_bits(expected, found));
    EXPECT_GT(group.exchange(0).bytes_sent(), 0);
  }
}

// -- engines -------------------------------------------------------------------------------------

std::vector<Answer> answers_of_group(int ranks, int dp, const std::vector<Request>& requests,
                                     std::vector<std::string>& errors) {
  ModelGroup group(ranks);
  // Experts move all the time, and some are there twice.
  for (int rank = 0; rank < ranks; ++rank)
    group.exchange(rank).balance(experts_of_layers(*group.model(rank)),
                                 checkpoint_experts(group.model(rank)),
                                 {.window_steps = 2, .interval_steps = 4, .redundant = 2});
  std::vector<Answer> answers(requests.size());
  errors = ThreadGroup::run(ranks, [&](int rank) {
    VoteChannel votes(group.threads().open(rank, 1));
    Voting voting(votes, {});
    Engine engine(group.model(rank), small_engine(), &voting);
    if (rank < dp) answer_share(engine, requests, rank, dp, answers);
  });
  const BalanceStats stats = group.exchange(0).balance_stats();
  EXPECT_GT(stats.rearrangements, 1);
  EXPECT_GT(stats.experts_read, 0);
  EXPECT_EQ(stats.slowest_over_mean.size(), experts_of_layers(*group.model(0)).size());
  return answers;
}

TEST(RankEngines, AnswersEqualOneProcess) {
  const std::vector<Request> requests = mixed_requests(reduced(32, 4));
  std::vector<Answer> expected(requests.size());
  {
    Engine engine(tiny_model(), small_engine());
    answer_share(engine, requests, 0, 1, expected);
  }
  for (const Answer& answer : expected) ASSERT_NE(answer.reason, EndReason::kError);
  for (const auto& [ranks, dp] : {std::pair{2, 2}, {4, 4}, {3, 1}}) {
    std::vector<std::string> errors;
    const auto found = answers_of_group(ranks, dp, requests, errors);
    for (const std::string& error : errors) EXPECT_EQ(error, "");
    for (size_t i = 0; i < requests.size(); ++i)
      EXPECT_TRUE(found[i] == expected[i])
          << "request " << i << " on " << ranks << " ranks: " << found[i].error;
  }
}

}  // namespace
}  // namespace peregrine::test
