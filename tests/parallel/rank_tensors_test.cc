// Tensor parallelism over threads: the cut of the model, layers of experts, sessions and engines of
// several ranks against a single process, bit for bit.
#include "parallel/rank_tensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "checkpoint/inventory.h"
#include "engine/model_impl.h"
#include "mixed_requests.h"
#include "parallel/distribution.h"
#include "parallel/tensor_follower.h"
#include "session_rows.h"
#include "thread_group.h"

namespace peregrine::test {
namespace {

// -- the cut -------------------------------------------------------------------------------------

TEST(TensorSplit, SharesCoverEveryUnitOnce) {
  for (int ranks = 1; ranks <= 9; ++ranks)
    for (const int64_t count : {1, 31, 32, 33, 96, 100, 256, 4096, 129280})
      for (const int64_t unit : {1, 32}) {
        int64_t next = 0, least = count, most = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const TensorSplit split(rank, ranks);
          const Slice share = split.share(count, unit);
          ASSERT_EQ(share.begin, next);
          ASSERT_TRUE(share.begin % unit == 0 || share.size() == 0);
          next = share.end;
          least = std::min(least, share.size());
          most = std::max(most, share.size());
          if (count > 100) continue;
          for (int64_t i = share.begin; i < share.end; ++i)
            ASSERT_EQ(split.owner(i, count, unit), rank);
        }
        ASSERT_EQ(next, count);
        ASSERT_LE(most - least, unit);
      }
}

// Every stored row is held by one rank, or by all.
TEST(TensorSplit, RowsCoverEveryTensor) {
  const ModelConfig& c = tiny_model()->impl().config();
  for (const int ranks : {2, 3, 4, 8})
    for (const TensorView& view : tiny_model()->impl().checkpoint.source->tensors()) {
      const int64_t rows = view.shape.at(0);
      int64_t held = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Slice slice = TensorSplit(rank, ranks).rows(c, view.name, rows);
        if (slice.size() == 0) continue;
        EXPECT_TRUE(slice.begin == 0 || slice.begin == held) << view.name;
        held += slice.size();
      }
      EXPECT_TRUE(held == rows || held == ranks * rows) << view.name << " on " << ranks;
    }
}

TEST(TensorSplit, PlanHoldsLessOnEveryRank) {
  const ModelConfig& c = tiny_model()->impl().config();
  const auto whole = plan_tensor_ranks(c, 1).at(0);
  EXPECT_EQ(whole.shared_bytes + whole.other_bytes, take_inventory(c).bytes);
  for (const int ranks : {2, 4}) {
    int64_t shared = 0;
    int64_t heads = 0;
    for (const TensorShare& share : plan_tensor_ranks(c, ranks)) {
      EXPECT_LT(share.shared_bytes + share.other_bytes, take_inventory(c).bytes);
      EXPECT_EQ(share.other_bytes, whole.other_bytes);
      shared += share.shared_bytes;
      heads += share.heads.size();
    }
    EXPECT_EQ(shared, whole.shared_bytes);
    EXPECT_EQ(heads, c.n_heads);
  }
}

// -- ranks ---------------------------------------------------------------------------------------

// One model a rank with its share of every large matrix.
class Group {
 public:
  explicit Group(int ranks, const std::string& device = "cpu") : threads_(ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      tensors_.push_back(std::make_unique<RankTensors>(threads_.open(rank, 0)));
      models_.push_back(Model::Impl::load(model_path("tiny"), {.device = device, .threads = 1},
                                          nullptr, tensors_.back().get()));
    }
  }
  std::shared_ptr<const Model> model(int rank) { return models_[static_cast<size_t>(rank)]; }

  // `lead` on rank 0 while the others follow; the sentence of each rank that failed.
  template <typename Lead>
  std::vector<std::string> run(Lead lead) {
    return ThreadGroup::run(threads_.ranks(), [&](int rank) {
      RankTensors& mine = *tensors_[static_cast<size_t>(rank)];
      mine.check_kernels(model(rank)->impl().backend->kernels_name());
      if (rank > 0) return follow_leader(*model(rank), mine);
      lead(model(0));
      mine.end();
    });
  }

 private:
  ThreadGroup threads_;
  std::vector<std::unique_ptr<RankTensors>> tensors_;
  std::vector<std::shared_ptr<const Model>> models_;
};

TEST(RankTensors, HoldsOnlyItsShare) {
  Group group(4);
  const ModelConfig& c = group.model(0)->impl().config();
  int64_t heads = 0, vocabulary = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const Weights& w = group.model(rank)->impl().weights;
    heads += w.layers[3].attn.wq_b.out / c.head_dim;
    vocabulary += w.embed.out;
    EXPECT_LE(w.layers[1].engram->table.rows, c.engram_num_embeddings[0] / 3);
    EXPECT_EQ(std::count_if(w.layers[4].moe.routed.begin(), w.layers[4].moe.routed.end(),
                            [](const Expert& e) { return static_cast<bool>(e.w1); }),
              4);
    EXPECT_LE(w.layers[4].moe.shared.w1.out, 32);
  }
  EXPECT_EQ(heads, c.n_heads);
  EXPECT_EQ(vocabulary, c.vocab_size);
}

struct SessionCase {
  const char* device;
  int ranks;
  PrefillMode prefill;
  size_t prompt = 150;
};
class TensorSession : public testing::TestWithParam<SessionCase> {};

TEST_P(TensorSession, EqualsOneProcess) {
  const auto [device, ranks, prefill, prompt_tokens] = GetParam();
  const Ids prompt = random_tokens(prompt_tokens, 5);
  const SessionOptions options{.chunk_tokens = 48, .prefill = prefill, .draft_rows = 4};
  const auto rows_of = [&](std::shared_ptr<const Model> model) {
    return session_rows(std::move(model), prompt, options);
  };
  const Rows expected = rows_of(tiny_model(device));
  Group group(ranks, device);
  for (int run = 0; run < 2; ++run) {  // a second session after the first
    Rows found;
    const auto errors =
        group.run([&](std::shared_ptr<const Model> model) { found = rows_of(std::move(model)); });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
    EXPECT_TRUE(same_bits(expected, found));
  }
}

INSTANTIATE_TEST_SUITE_P(RankTensors, TensorSession,
                         testing::Values(SessionCase{"cpu", 2, PrefillMode::kExact},
                                         SessionCase{"cpu", 4, PrefillMode::kReplay},
                                         SessionCase{"cpu", 3, PrefillMode::kReplay},
                                         SessionCase{"reference", 2, PrefillMode::kExact, 5}));

// In f32 a sum shows its order in almost every bit.
TEST(RankTensors, UnquantisedExpertsEqualOneProcess) {
  const std::string path = data_path("backbone_fp32");
  const Checkpoint checkpoint = Checkpoint::open(path);
  const ModelConfig& c = checkpoint.config;
  const auto make = [&] {
    return make_backend("cpu", c, Weights::numerics(*checkpoint.source), {.threads = 1});
  };
  constexpr int64_t kRows = 7, kActive = 3;
  std::mt19937 random(4);
  std::vector<float> u(static_cast<size_t>(kRows * c.dim)), expected(u.size()), weights;
  std::vector<int32_t> ids;
  for (float& x : u) x = static_cast<float>(static_cast<int32_t>(random())) * 0x1p-31f;
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t k = 0; k < kActive; ++k) {
      ids.push_back(static_cast<int32_t>(k * c.n_routed_experts / kActive +
                                         random() % (c.n_routed_experts / kActive)));
      weights.push_back(0.1f + 0.2f * static_cast<float>(k));
    }
  const auto args = [&](const MoeWeights& w, std::vector<float>& out) {
    return ExpertsArgs{.u = {u.data(), kRows, c.dim, Elem::kF32},
                       .ids = {ids.data(), kRows, kActive, Elem::kI32},
                       .weights = {weights.data(), kRows, kActive, Elem::kF32},
                       .routed = w.routed,
                       .shared = &w.shared,
                       .out = {out.data(), kRows, c.dim, Elem::kF32}};
  };
  {
    const auto backend = make();
    const Weights whole(c, *checkpoint.source, *backend);
    backend->experts(args(whole.layers[2].moe, expected));
  }
  ThreadGroup threads(2);
  std::vector<std::vector<float>> found(2, expected);
  const auto errors = ThreadGroup::run(2, [&](int rank) {
    RankTensors group(threads.open(rank, 0));
    const auto backend = make();
    const Weights mine(c, *checkpoint.source, *backend, nullptr, &group);
    std::vector<float>& out = found[static_cast<size_t>(rank)];
    std::fill(out.begin(), out.end(), 0.0f);
    group.experts(*backend, 2, args(mine.layers[2].moe, out));
  });
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(errors[rank], "");
    EXPECT_TRUE(found[rank] == expected) << rank;
  }
}

TEST(RankTensors, EnginesAnswerAsOneProcess) {
  const std::vector<Request> requests = mixed_requests(reduced(16, 4));
  const auto answers_of = [&](std::shared_ptr<const Model> model) {
    Engine engine(std::move(model), small_engine());
    std::vector<Answer> answers(requests.size()), more(1);
    answer_share(engine, requests, 0, 1, answers);
    // A request that goes on where another ended, whose slot has been used since: the recent part
    // of its state is loaded.
    std::vector<Request> again(1);
    again[0].prompt = random_tokens(100, 77);
    again[0].max_tokens = 8;
    again[0].sampling.temperature = 0;
    answer_share(engine, again, 0, 1, more);
    Ids& prompt = again[0].prompt;
    prompt.insert(prompt.end(), more[0].tokens.begin(), more[0].tokens.end());
    prompt.push_back(5);
    answer_share(engine, {requests[1]}, 0, 1, more);
    more[0] = {};
    EXPECT_GT(engine.cached_tokens(prompt), 0);
    again[0].sampling.logprobs = 0;
    answer_share(engine, again, 0, 1, more);
    answers.push_back(more[0]);
    return answers;
  };
  const std::vector<Answer> expected = answers_of(tiny_model());
  for (const Answer& answer : expected) ASSERT_NE(answer.reason, EndReason::kError);
  for (const int ranks : {2, 4}) {
    Group group(ranks);
    std::vector<Answer> found(expected.size());
    const auto errors = group.run(
        [&](std::shared_ptr<const Model> model) { found = answers_of(std::move(model)); });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(found[i] == expected[i]) << "request " << i << " on " << ranks << " ranks";
  }
}

TEST(RankTensors, DifferentKernelsAreRefused) {
  ThreadGroup threads(2);
  const auto errors = ThreadGroup::run(2, [&](int rank) {
    RankTensors(threads.open(rank, 0)).check_kernels(rank == 0 ? "cpu (AVX2)" : "cpu (AVX3)");
  });
  EXPECT_EQ(errors[0],
            "rank 1 computes with cpu (AVX3), this rank with cpu (AVX2): tensor-parallel ranks "
            "must compute alike");
  EXPECT_NE(errors[1], "");
}

}  // namespace
}  // namespace peregrine::test
