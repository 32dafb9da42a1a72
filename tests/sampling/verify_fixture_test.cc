// Verification against the recorded float64 reference (block_verify): draws with given uniform
// numbers, and exact laws by enumeration of every draft block.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sampling/verify.h"
#include "support/fixtures.h"

namespace peregrine {
namespace {

const test::Fixture& fixture() {
  static const test::Fixture fixture(test::data_path("block_verify/expected.safetensors"));
  return fixture;
}

// The reference and this code sum the same doubles, at most 257 of them, in different orders.
constexpr double kTolerance = 1e-12;

std::span<const double> row_of(const std::vector<double>& values, size_t row, size_t width) {
  return std::span(values).subspan(row * width, width);
}

// One distribution a row of the tensor.
std::vector<Distribution> distributions(const std::string& name, size_t vocab) {
  const std::vector<double> values = fixture().doubles(name);
  std::vector<Distribution> rows;
  for (size_t r = 0; r * vocab < values.size(); ++r) {
    rows.push_back(from_dense(row_of(values, r, vocab)));
  }
  return rows;
}

void expect_dense(const Distribution& actual, std::span<const double> expected,
                  const std::string& where) {
  for (size_t id = 0; id < expected.size(); ++id) {
    ASSERT_NEAR(actual.at(static_cast<int32_t>(id)), expected[id], kTolerance)
        << where << " token " << id;
  }
}

class RecordedCase : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    name_ = GetParam();
    vocab_ = static_cast<size_t>(fixture().view(name_ + ".p").shape[1]);
    n_ = static_cast<size_t>(fixture().view(name_ + ".drafts").shape[1]);
    draws_ = static_cast<size_t>(fixture().view(name_ + ".drafts").shape[0]);
    p_ = distributions(name_ + ".p", vocab_);
    q_ = distributions(name_ + ".q", vocab_);
    drafts_ = fixture().ints(name_ + ".drafts");
    uniforms_ = fixture().doubles(name_ + ".u");
    bonus_ = fixture().doubles(name_ + ".u_bonus");
  }

  DraftBlock block(size_t draw) const {
    return {.p = p_, .q = q_, .drafts = std::span(drafts_).subspan(draw * n_, n_)};
  }

  void expect_results(VerifyMethod method, const std::string& kind) const {
    const std::vector<int32_t> lengths = fixture().ints(name_ + kind + ".len");
    const std::vector<int32_t> tokens = fixture().ints(name_ + kind + ".bonus");
    for (size_t draw = 0; draw < draws_; ++draw) {
      const VerifyResult result = verify(
          method, block(draw), {.accept = row_of(uniforms_, draw, n_), .bonus = bonus_[draw]});
      EXPECT_EQ(result.accepted, lengths[draw]) << name_ << " draw " << draw;
      EXPECT_EQ(result.bonus, tokens[draw]) << name_ << " draw " << draw;
    }
  }

  // What the bonus token is drawn from after `accepted` drafts.
  Distribution bonus_law(const DraftBlock& block, size_t accepted, double weight) const {
    return accepted == n_ ? p_[n_] : residual(weight, block.p[accepted], block.q[accepted]);
  }

  std::string name_;
  size_t vocab_ = 0;
  size_t n_ = 0;
  size_t draws_ = 0;
  std::vector<Distribution> p_, q_;
  std::vector<int32_t> drafts_;
  std::vector<double> uniforms_, bonus_;
};

TEST_P(RecordedCase, LengthsAndBonusTokens) {
  expect_results(VerifyMethod::kRejection, ".token");
  expect_results(VerifyMethod::kBlock, ".block");
}

TEST_P(RecordedCase, WeightsMassesAndThresholds) {
  const std::vector<double> weight = fixture().doubles(name_ + ".block.p");
  const std::vector<double> threshold = fixture().doubles(name_ + ".block.h");
  const std::vector<double> mass = fixture().doubles(name_ + ".block.s");
  const std::vector<double> residuals = fixture().doubles(name_ + ".block.residual");
  const std::vector<int32_t> lengths = fixture().ints(name_ + ".block.len");
  for (size_t draw = 0; draw < draws_; ++draw) {
    const BlockThresholds parts = block_thresholds(block(draw));
    for (size_t i = 1; i <= n_; ++i) {
      const size_t at = draw * (n_ + 1) + i;
      EXPECT_NEAR(parts.weight[i], weight[at], kTolerance) << name_ << " " << draw << " " << i;
      EXPECT_NEAR(parts.threshold[i], threshold[at], kTolerance)
          << name_ << " " << draw << " " << i;
      EXPECT_NEAR(parts.remaining[i], mass[at], kTolerance) << name_ << " " << draw << " " << i;
    }
    const size_t accepted = static_cast<size_t>(lengths[draw]);
    expect_dense(bonus_law(block(draw), accepted, parts.weight[accepted]),
                 row_of(residuals, draw, vocab_), name_);
  }
}

TEST_P(RecordedCase, TokenWiseProbabilitiesAndResiduals) {
  const std::vector<double> accept = fixture().doubles(name_ + ".token.accept_prob");
  const std::vector<double> residuals = fixture().doubles(name_ + ".token.residual");
  const std::vector<int32_t> lengths = fixture().ints(name_ + ".token.len");
  for (size_t draw = 0; draw < draws_; ++draw) {
    for (size_t i = 0; i < n_; ++i) {
      const int32_t x = drafts_[draw * n_ + i];
      EXPECT_NEAR(carried_weight(1.0, p_[i].at(x), q_[i].at(x)), accept[draw * n_ + i], kTolerance)
          << name_ << " " << draw << " " << i;
    }
    expect_dense(bonus_law(block(draw), static_cast<size_t>(lengths[draw]), 1.0),
                 row_of(residuals, draw, vocab_), name_);
  }
}

INSTANTIATE_TEST_SUITE_P(BlockVerify, RecordedCase,
                         testing::Values("random_v3_n1", "random_v3_n2", "random_v3_n5",
                                         "random_v5_n3", "random_v17_n4", "random_v64_n5",
                                         "random_v257_n5", "random_v257_n2", "random_v100_n7",
                                         "same_pq", "disjoint", "target_greedy", "draft_greedy",
                                         "truncated_supports", "same_except_third"),
                         [](const auto& info) { return std::string(info.param); });

// ---- exact laws
// ----------------------------------------------------------------------------------

constexpr size_t kVocab = 3;

size_t power_of_vocab(size_t exponent) {
  size_t power = 1;
  while (exponent-- > 0) power *= kVocab;
  return power;
}

// Context-dependent distributions: level d has a row for each prefix of d tokens, in
// lexicographic order.
struct ExactCase {
  size_t n;
  std::vector<std::vector<Distribution>> p, q;

  explicit ExactCase(const std::string& name)
      : n(static_cast<size_t>(fixture().view(name + ".token.len_law").shape[0]) - 1) {
    for (size_t d = 0; d <= n; ++d) {
      p.push_back(distributions(name + ".p" + std::to_string(d), kVocab));
      if (d < n) q.push_back(distributions(name + ".q" + std::to_string(d), kVocab));
    }
  }

  // Probability that plain sampling emits the n + 1 tokens numbered `sequence`.
  double plain(size_t sequence) const {
    double probability = 1.0;
    for (size_t d = 0; d <= n; ++d) {
      const size_t prefix = sequence / power_of_vocab(n + 1 - d);
      const size_t token = sequence / power_of_vocab(n - d) % kVocab;
      probability *= p[d][prefix].at(static_cast<int32_t>(token));
    }
    return probability;
  }
};

struct Law {
  std::vector<double> length;  // [n + 1]
  std::vector<double> output;  // [3^(n+1)]: accepted drafts, bonus, then plain sampling
};

// Adds one outcome: `accepted` drafts of the block `drafts`, then the bonus law, then plain tokens.
void add_outcome(const ExactCase& exact, size_t drafts, size_t accepted, double probability,
                 const Distribution& bonus, Law* law) {
  law->length[accepted] += probability;
  const size_t prefix = drafts / power_of_vocab(exact.n - accepted);
  const size_t free = power_of_vocab(exact.n + 1 - accepted);
  for (size_t tail = 0; tail < free; ++tail) {
    const size_t sequence = prefix * free + tail;
    const size_t first = tail / power_of_vocab(exact.n - accepted);
    double mass = probability * bonus.at(static_cast<int32_t>(first));
    for (size_t d = accepted + 1; d <= exact.n; ++d) {
      const size_t before = sequence / power_of_vocab(exact.n + 1 - d);
      mass *= exact.p[d][before].at(
          static_cast<int32_t>(sequence / power_of_vocab(exact.n - d) % kVocab));
    }
    law->output[sequence] += mass;
  }
}

// Integrates verification over all uniform numbers for one draft block of probability `drawn`.
void add_block(const ExactCase& exact, VerifyMethod method, size_t drafts, Law* law) {
  const size_t n = exact.n;
  std::vector<Distribution> p, q;
  std::vector<int32_t> tokens;
  double drawn = 1.0;
  for (size_t d = 0; d <= n; ++d) {
    const size_t prefix = drafts / power_of_vocab(n - d);
    p.push_back(exact.p[d][prefix]);
    if (d == n) break;
    q.push_back(exact.q[d][prefix]);
    tokens.push_back(static_cast<int32_t>(drafts / power_of_vocab(n - 1 - d) % kVocab));
    drawn *= q[d].at(tokens[d]);
  }
  const DraftBlock block{.p = p, .q = q, .drafts = tokens};
  if (method == VerifyMethod::kBlock) {
    const BlockThresholds parts = block_thresholds(block);
    double undecided = drawn;  // no longer prefix was accepted
    for (size_t a = n + 1; a-- > 0;) {
      const double accept = a == 0 ? 1.0 : parts.threshold[a];
      add_outcome(exact, drafts, a, undecided * accept,
                  a == n ? p[n] : residual(parts.weight[a], p[a], q[a]), law);
      undecided *= 1.0 - accept;
    }
    return;
  }
  double standing = drawn;
  for (size_t a = 0; a < n; ++a) {
    const double accept = carried_weight(1.0, p[a].at(tokens[a]), q[a].at(tokens[a]));
    add_outcome(exact, drafts, a, standing * (1.0 - accept), residual(1.0, p[a], q[a]), law);
    standing *= accept;
  }
  add_outcome(exact, drafts, n, standing, p[n], law);
}

class ExactLaw : public testing::TestWithParam<const char*> {};

TEST_P(ExactLaw, LengthAndOutputLaws) {
  const std::string name = GetParam();
  const ExactCase exact(name);
  double expected_accepted[2] = {0, 0};
  for (const VerifyMethod method : {VerifyMethod::kRejection, VerifyMethod::kBlock}) {
    const bool is_block = method == VerifyMethod::kBlock;
    Law law{.length = std::vector<double>(exact.n + 1, 0.0),
            .output = std::vector<double>(power_of_vocab(exact.n + 1), 0.0)};
    for (size_t drafts = 0; drafts < power_of_vocab(exact.n); ++drafts) {
      add_block(exact, method, drafts, &law);
    }
    const std::string kind = is_block ? ".block" : ".token";
    const std::vector<double> length_law = fixture().doubles(name + kind + ".len_law");
    double mean = 0.0;
    for (size_t a = 0; a <= exact.n; ++a) {
      EXPECT_NEAR(law.length[a], length_law[a], kTolerance) << name << kind << " length " << a;
      mean += static_cast<double>(a) * law.length[a];
    }
    EXPECT_NEAR(mean, fixture().doubles(name + kind + ".expected_len")[0], kTolerance);
    expected_accepted[is_block] = mean;
    for (size_t sequence = 0; sequence < law.output.size(); ++sequence) {
      EXPECT_NEAR(law.output[sequence], exact.plain(sequence), kTolerance)
          << name << kind << " sequence " << sequence;
    }
  }
  EXPECT_GE(expected_accepted[1], expected_accepted[0] - kTolerance);
}

INSTANTIATE_TEST_SUITE_P(BlockVerify, ExactLaw,
                         testing::Values("exact_n1_0", "exact_n1_1", "exact_n1_2", "exact_n2_0",
                                         "exact_n2_1", "exact_n2_2", "exact_n3_0", "exact_n3_1",
                                         "exact_n3_2", "exact_n4_0", "exact_n4_1", "exact_n4_2"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace peregrine
