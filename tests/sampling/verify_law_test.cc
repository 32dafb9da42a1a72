// The statistical test of speculative decoding: decoding by drafts and verification must emit
// tokens with the frequencies of the model alone, and a verifier that is subtly wrong must fail.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include "sampling/chi_square.h"
#include "sampling/verify.h"

namespace peregrine {
namespace {

constexpr size_t kVocab = 3;
constexpr size_t kDrafts = 3;
constexpr int kTrials = 10000;
constexpr size_t kSequences = kVocab * kVocab * kVocab;  // of the first three emitted tokens

using Row = std::array<double, kVocab>;

// A model and a drafter over three tokens whose next-token distribution depends on the last token.
struct SyntheticModel {
  std::array<Row, kVocab> p, q;
  static constexpr size_t kStart = 0;  // the token before the first

  // `mix` 0: the drafter ignores the model; 1: it equals the model.
  SyntheticModel(uint64_t seed, double mix) {
    for (size_t context = 0; context < kVocab; ++context) {
      const Row own = random_row(seed, 2 * context);
      const Row other = random_row(seed, 2 * context + 1);
      p[context] = own;
      for (size_t v = 0; v < kVocab; ++v) q[context][v] = mix * own[v] + (1 - mix) * other[v];
    }
  }

  static Row random_row(uint64_t seed, uint64_t position) {
    Row row;
    double total = 0.0;
    for (size_t v = 0; v < kVocab; ++v) {
      row[v] = exponential(seed, position, Purpose::kSample, static_cast<uint32_t>(v));
      total += row[v];
    }
    for (double& value : row) value /= total;
    return row;
  }

  std::vector<double> plain_law() const {
    std::vector<double> law;
    for (size_t a = 0; a < kVocab; ++a)
      for (size_t b = 0; b < kVocab; ++b)
        for (size_t c = 0; c < kVocab; ++c) law.push_back(p[kStart][a] * p[a][b] * p[b][c]);
    return law;
  }
};

std::vector<SyntheticModel> models() {
  return {{101, 0.0}, {102, 0.3}, {103, 0.6}, {104, 0.9}, {105, 1.0}};
}

// One drafted block with its rows, as a verification step sees it.
struct Drafted {
  std::vector<Distribution> p, q;
  std::vector<int32_t> tokens;

  Drafted(const SyntheticModel& model, size_t context, const DrawKey& key) {
    for (size_t i = 0; i < kDrafts; ++i) {
      p.push_back(from_dense(model.p[context]));
      q.push_back(from_dense(model.q[context]));
      tokens.push_back(draw(q.back(), key, Purpose::kDraft, static_cast<uint32_t>(i)));
      context = static_cast<size_t>(tokens.back());
    }
    p.push_back(from_dense(model.p[context]));
  }
  DraftBlock block() const { return {.p = p, .q = q, .drafts = tokens}; }
};

using Verifier = std::function<VerifyResult(const DraftBlock&, const DrawKey&)>;

struct Outcome {
  std::vector<int64_t> counts = std::vector<int64_t>(kSequences, 0);
  double mean_accepted = 0.0;  // drafts accepted in a trial's first step
};

// Decodes three tokens per trial, stepping as often as it takes, like the engine does.
Outcome decode(const SyntheticModel& model, const Verifier& verifier) {
  Outcome outcome;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<size_t> emitted;
    size_t context = SyntheticModel::kStart;
    while (emitted.size() < 3) {
      const DrawKey key{.seed = static_cast<uint64_t>(trial), .position = emitted.size()};
      const Drafted drafted(model, context, key);
      const VerifyResult result = verifier(drafted.block(), key);
      if (emitted.empty()) outcome.mean_accepted += result.accepted;
      for (int i = 0; i < result.accepted; ++i) {
        emitted.push_back(static_cast<size_t>(drafted.tokens[static_cast<size_t>(i)]));
      }
      emitted.push_back(static_cast<size_t>(result.bonus));
      context = emitted.back();
    }
    ++outcome.counts[(emitted[0] * kVocab + emitted[1]) * kVocab + emitted[2]];
  }
  outcome.mean_accepted /= kTrials;
  return outcome;
}

Verifier with_method(VerifyMethod method) {
  return
      [method](const DraftBlock& block, const DrawKey& key) { return verify(method, block, key); };
}

// ---- an independent dense reference of the accepted length --------------------------------------

int reference_length(VerifyMethod method, const SyntheticModel& model, const Drafted& drafted,
                     const std::array<double, kDrafts>& u) {
  size_t context = SyntheticModel::kStart;
  double w = 1.0;
  int longest = 0;
  for (size_t i = 0; i < kDrafts; ++i) {
    const size_t x = static_cast<size_t>(drafted.tokens[i]);
    const double ratio = model.p[context][x] / model.q[context][x];
    context = x;
    if (method == VerifyMethod::kRejection) {
      if (u[i] >= std::min(1.0, ratio)) return static_cast<int>(i);
      longest = static_cast<int>(i) + 1;
      continue;
    }
    w = std::min(1.0, w * ratio);
    double h = w;
    if (i + 1 < kDrafts) {
      double s = 0.0;
      for (size_t v = 0; v < kVocab; ++v) {
        s += std::max(w * model.p[context][v] - model.q[context][v], 0.0);
      }
      h = s + 1 - w > 0 ? s / (s + 1 - w) : 1.0;
    }
    if (u[i] < h) longest = static_cast<int>(i) + 1;
  }
  return longest;
}

TEST(SpeculationLaw, LengthsEqualTheDenseReference) {
  // mix 1 is left to the other tests: there every ratio is 1 up to the rounding of a
  // normalisation, and thresholds of 0 / 0 may differ by it.
  for (const SyntheticModel& model : models()) {
    if (model.p == model.q) continue;
    for (const VerifyMethod method : {VerifyMethod::kRejection, VerifyMethod::kBlock}) {
      for (int trial = 0; trial < kTrials; ++trial) {
        const DrawKey key{.seed = static_cast<uint64_t>(trial), .position = 9};
        const Drafted drafted(model, SyntheticModel::kStart, key);
        std::array<double, kDrafts> u;
        for (size_t i = 0; i < kDrafts; ++i) {
          u[i] = draw_uniform(key, Purpose::kVerify, static_cast<uint32_t>(i));
        }
        ASSERT_EQ(verify(method, drafted.block(), key).accepted,
                  reference_length(method, model, drafted, u))
            << "trial " << trial;
      }
    }
  }
}

TEST(SpeculationLaw, OutputHasTheModelsDistribution) {
  for (const SyntheticModel& model : models()) {
    for (const VerifyMethod method : {VerifyMethod::kRejection, VerifyMethod::kBlock}) {
      const Outcome outcome = decode(model, with_method(method));
      const test::ChiSquare test = test::chi_square(outcome.counts, model.plain_law());
      EXPECT_TRUE(test.passes()) << test.statistic << " against " << test.critical;
    }
  }
}

TEST(SpeculationLaw, BlockAcceptsAtLeastAsMuch) {
  for (const SyntheticModel& model : models()) {
    const double token = decode(model, with_method(VerifyMethod::kRejection)).mean_accepted;
    const double block = decode(model, with_method(VerifyMethod::kBlock)).mean_accepted;
    EXPECT_GE(block, 0.98 * token);
  }
}

TEST(SpeculationLaw, BonusFromTheModelInsteadOfTheResidualFails) {
  for (const VerifyMethod method : {VerifyMethod::kRejection, VerifyMethod::kBlock}) {
    const Verifier broken = [method](const DraftBlock& block, const DrawKey& key) {
      VerifyResult result = verify(method, block, key);
      result.bonus = draw(block.p[static_cast<size_t>(result.accepted)], key, Purpose::kBonus);
      return result;
    };
    const SyntheticModel model(102, 0.3);
    const test::ChiSquare test = test::chi_square(decode(model, broken).counts, model.plain_law());
    EXPECT_FALSE(test.passes()) << test.statistic << " against " << test.critical;
  }
}

// ---- corner cases
// --------------------------------------------------------------------------------

TEST(Verify, ATokenTheModelCannotEmitIsNeverAccepted) {
  const std::vector<Distribution> p = {from_dense(std::vector<double>{0.0, 0.5, 0.5}), one_hot(1)};
  const std::vector<Distribution> q = {from_dense(std::vector<double>{0.5, 0.5, 0.0})};
  const std::vector<int32_t> drafts = {0};
  const std::vector<double> zero = {0.0};
  for (const VerifyMethod method : {VerifyMethod::kRejection, VerifyMethod::kBlock}) {
    const VerifyResult result =
        verify(method, {.p = p, .q = q, .drafts = drafts}, {.accept = zero, .bonus = 0.0});
    EXPECT_EQ(result.accepted, 0);
    EXPECT_EQ(result.bonus, 2);  // the residual holds token 2 alone
  }
}

TEST(Verify, EqualDistributionsAcceptEverything) {
  const Distribution row = from_dense(std::vector<double>{0.1, 0.2, 0.7});
  const std::vector<Distribution> p(4, row);
  const std::vector<Distribution> q(3, row);
  const std::vector<int32_t> drafts = {0, 2, 1};
  const std::vector<double> high(3, 1.0 - 0x1p-53);
  for (const VerifyMethod method : {VerifyMethod::kRejection, VerifyMethod::kBlock}) {
    const VerifyResult result =
        verify(method, {.p = p, .q = q, .drafts = drafts}, {.accept = high, .bonus = 0.05});
    EXPECT_EQ(result.accepted, 3);
    EXPECT_EQ(result.bonus, 0);
  }
}

TEST(Verify, ResidualWithoutMassIsTheModelsRow) {
  const Distribution row = from_dense(std::vector<double>{0.25, 0.75});
  const Distribution result = residual(1.0, row, row);
  EXPECT_EQ(result.ids, row.ids);
  EXPECT_EQ(result.probabilities, row.probabilities);
}

TEST(Verify, WithoutDraftsTheBonusComesFromTheOnlyRow) {
  const std::vector<Distribution> p = {one_hot(7)};
  for (const VerifyMethod method : {VerifyMethod::kRejection, VerifyMethod::kBlock}) {
    const VerifyResult result = verify(method, {.p = p, .q = {}, .drafts = {}}, DrawKey{});
    EXPECT_EQ(result.accepted, 0);
    EXPECT_EQ(result.bonus, 7);
  }
}

TEST(Verify, GreedyAcceptsThePrefixThatMatches) {
  const std::vector<int32_t> best = {4, 5, 6, 7};
  const auto check = [&best](std::vector<int32_t> drafts, int accepted, int32_t bonus) {
    const VerifyResult result = verify_greedy(best, drafts);
    EXPECT_EQ(result.accepted, accepted);
    EXPECT_EQ(result.bonus, bonus);
  };
  check({4, 5, 6}, 3, 7);
  check({4, 9, 6}, 1, 5);
  check({9, 5, 6}, 0, 4);
  check({}, 0, 4);
}

TEST(Verify, OneHotRowsReproduceGreedyVerification) {
  const std::vector<Distribution> p = {one_hot(4), one_hot(5), one_hot(6)};
  const Distribution wide = from_dense(std::vector<double>(10, 0.1));
  const std::vector<Distribution> q = {wide, wide};
  const std::vector<int32_t> best = {4, 5, 6};
  for (const std::vector<int32_t>& drafts : {std::vector<int32_t>{4, 5}, {4, 1}, {1, 5}, {5, 4}}) {
    const VerifyResult greedy = verify_greedy(best, drafts);
    for (const VerifyMethod method : {VerifyMethod::kRejection, VerifyMethod::kBlock}) {
      for (uint64_t seed = 0; seed < 50; ++seed) {
        const VerifyResult result =
            verify(method, {.p = p, .q = q, .drafts = drafts}, {.seed = seed, .position = 3});
        EXPECT_EQ(result.accepted, greedy.accepted);
        EXPECT_EQ(result.bonus, greedy.bonus);
      }
    }
  }
}

}  // namespace
}  // namespace peregrine
