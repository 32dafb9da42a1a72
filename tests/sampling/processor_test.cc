// Logit processing: worked examples, filters against a brute-force oracle, and edge cases.
#include "sampling/processor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/philox.h"

namespace peregrine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Distribution process(const std::vector<float>& logits, const SamplingParams& params,
                     const TokenCounts* counts = nullptr, std::vector<int32_t> masked = {}) {
  LogitProcessor processor(static_cast<int>(logits.size()));
  Distribution result;
  processor.process({.logits = logits, .counts = counts, .masked = masked}, params, &result);
  return result;
}

// Logits whose softmax at temperature 1 is exactly these weights, up to rounding.
std::vector<float> logs(const std::vector<double>& weights) {
  std::vector<float> logits;
  for (const double w : weights) logits.push_back(static_cast<float>(std::log(w)));
  return logits;
}

// A float logit of magnitude up to 8 is off by 2^-22 at most, float exp by about 2^-23 relative.
constexpr double kTolerance = 1e-6;

void expect_distribution(const Distribution& actual, const std::vector<int32_t>& ids,
                         const std::vector<double>& probabilities) {
  ASSERT_EQ(actual.ids, ids);
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_NEAR(actual.probabilities[i], probabilities[i], kTolerance) << "token " << ids[i];
  }
}

TEST(Processor, SoftmaxAndTemperature) {
  expect_distribution(process(logs({1, 2, 5}), {}), {0, 1, 2}, {0.125, 0.25, 0.625});
  // Temperature 0.5 squares the weights, 2 takes their root.
  expect_distribution(process(logs({1, 2, 3}), {.temperature = 0.5}), {0, 1, 2},
                      {1.0 / 14, 4.0 / 14, 9.0 / 14});
  expect_distribution(process(logs({1, 4, 9}), {.temperature = 2}), {0, 1, 2},
                      {1.0 / 6, 2.0 / 6, 3.0 / 6});
}

TEST(Processor, GreedyIsTheLowestOfEqualMaxima) {
  expect_distribution(process({1, 3, 3, 2}, {.temperature = 0}), {1}, {1.0});
  EXPECT_EQ(LogitProcessor(4).greedy_token({.logits = std::vector<float>{1, 3, 3, 2}}, {}), 1);
}

TEST(Processor, TinyTemperatureStaysFinite) {
  expect_distribution(process({1e30f, -1e30f, 0}, {.temperature = 1e-30}), {0}, {1.0});
}

TEST(Processor, TopK) {
  expect_distribution(process(logs({1, 4, 2, 3}), {.top_k = 2}), {1, 3}, {4.0 / 7, 3.0 / 7});
  expect_distribution(process(logs({1, 1, 1, 1}), {.top_k = 2}), {0, 1}, {0.5, 0.5});
  expect_distribution(process(logs({1, 3}), {.top_k = 2}), {0, 1}, {0.25, 0.75});
  expect_distribution(process(logs({1, 3}), {.top_k = -1}), {0, 1}, {0.25, 0.75});
}

TEST(Processor, TopPReachesTheMassWithTheFewestTokens) {
  const std::vector<float> logits = logs({0.5, 0.3, 0.15, 0.05});
  expect_distribution(process(logits, {.top_p = 0.4}), {0}, {1.0});
  expect_distribution(process(logits, {.top_p = 0.7}), {0, 1}, {0.625, 0.375});
  expect_distribution(process(logits, {.top_p = 0.9}), {0, 1, 2},
                      {0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95});
  expect_distribution(process(logits, {.top_p = 1e-9}), {0}, {1.0});
}

TEST(Processor, TopPIsRelativeToWhatTopKLeft) {
  // Of 0.4 + 0.3 the first has 57%: enough for 0.5, though it is 40% of the whole.
  const std::vector<float> logits = logs({0.3, 0.4, 0.2, 0.1});
  expect_distribution(process(logits, {.top_p = 0.5, .top_k = 2}), {1}, {1.0});
  expect_distribution(process(logits, {.top_p = 0.5}), {0, 1}, {3.0 / 7, 4.0 / 7});
}

TEST(Processor, MinPIsRelativeToTheBest) {
  const std::vector<float> logits = logs({0.08, 0.5, 0.3, 0.12});
  expect_distribution(process(logits, {.min_p = 0.2}), {1, 2, 3},
                      {0.5 / 0.92, 0.3 / 0.92, 0.12 / 0.92});
  expect_distribution(process(logits, {.min_p = 1.0}), {1}, {1.0});
  expect_distribution(process(logits, {.top_k = 3, .min_p = 0.5}), {1, 2}, {0.625, 0.375});
}

// Token 0 is in the prompt only, 1 twice in the output, 2 in both, 3 nowhere.
TokenCounts example_counts() {
  TokenCounts counts;
  counts.add_prompt(0);
  counts.add_prompt(2);
  counts.add(1);
  counts.add(1);
  counts.add(2);
  return counts;
}

std::vector<double> logits_behind(const Distribution& distribution) {
  std::vector<double> logits;
  for (const double p : distribution.probabilities) {
    logits.push_back(std::log(p) - std::log(distribution.probabilities.back()));
  }
  return logits;
}

TEST(Processor, RepetitionPenaltyScalesTokensOfPromptAndOutput) {
  const TokenCounts counts = example_counts();
  const Distribution result = process({2, -1, 0.5f, 0}, {.repetition_penalty = 2}, &counts);
  const std::vector<double> expected = {1, -2, 0.25, 0};
  const std::vector<double> actual = logits_behind(result);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], kTolerance);
}

TEST(Processor, FrequencyAndPresenceCountTheOutputOnly) {
  const TokenCounts counts = example_counts();
  const SamplingParams params = {.presence_penalty = 0.25, .frequency_penalty = 0.5};
  const std::vector<double> actual = logits_behind(process({1, 1, 1, 0}, params, &counts));
  const std::vector<double> expected = {1, 1 - 2 * 0.5 - 0.25, 1 - 0.5 - 0.25, 0};
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], kTolerance);
}

TEST(Processor, BiasComesAfterPenaltiesAndMaskComesLast) {
  const TokenCounts counts = example_counts();
  const SamplingParams params = {.repetition_penalty = 2, .logit_bias = {{0, 3.0f}, {3, 100.0f}}};
  // 2 / 2 + 3, not (2 + 3) / 2; the masked token stays out whatever its bias.
  const Distribution result = process({2, 0, 0, 0}, params, &counts, {3});
  expect_distribution(
      result, {0, 1, 2},
      {std::exp(4) / (std::exp(4) + 2), 1 / (std::exp(4) + 2), 1 / (std::exp(4) + 2)});
}

TEST(Processor, RemovingADraftUndoesIt) {
  TokenCounts counts = example_counts();
  const SamplingParams params = {
      .repetition_penalty = 1.5, .presence_penalty = 1, .frequency_penalty = 0.5};
  const Distribution before = process({1, 2, 3, 4}, params, &counts);
  for (const int32_t id : {3, 0, 1}) counts.add(id);
  EXPECT_NE(process({1, 2, 3, 4}, params, &counts).probabilities, before.probabilities);
  for (const int32_t id : {3, 0, 1}) counts.remove(id);
  EXPECT_EQ(process({1, 2, 3, 4}, params, &counts).probabilities, before.probabilities);
}

TEST(Processor, ValuesThatAreNotFinite) {
  expect_distribution(process({kNan, 0, -kInfinity, 0}, {}), {1, 3}, {0.5, 0.5});
  expect_distribution(process({0, kInfinity, kNan, kInfinity}, {}), {1, 3}, {0.5, 0.5});
  for (const double temperature : {0.0, 1.0}) {
    expect_distribution(process({kNan, kNan}, {.temperature = temperature}), {0}, {1.0});
    expect_distribution(process({1, 2}, {.temperature = temperature}, nullptr, {0, 1}), {0}, {1.0});
  }
  const SamplingParams filters = {.top_p = 0.9, .top_k = 3, .min_p = 0.01};
  expect_distribution(process({kNan, 0, -kInfinity, 0, kNan}, filters), {1, 3}, {0.5, 0.5});
}

// ---- oracle
// --------------------------------------------------------------------------------------

// The definition, with a full sort: same weights, same order of sums, nothing clever.
Distribution brute_force(const std::vector<float>& logits, const SamplingParams& params) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](int32_t id) { return logits[static_cast<size_t>(id)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < order.size()) {
    order.resize(static_cast<size_t>(params.top_k));
  }
  const float maximum = logit(order[0]);
  const auto weight = [&](int32_t id) {
    return static_cast<double>(
        std::exp((logit(id) - maximum) / static_cast<float>(params.temperature)));
  };
  std::vector<int32_t> by_id = order;
  std::sort(by_id.begin(), by_id.end());
  double total = 0.0;
  for (const int32_t id : by_id) total += weight(id);
  std::vector<int32_t> kept;
  double mass = 0.0;
  for (const int32_t id : order) {
    if (!kept.empty() && params.top_p < 1.0 && mass >= params.top_p * total) break;
    mass += weight(id);
    if (weight(id) > 0.0 && weight(id) >= params.min_p) kept.push_back(id);
  }
  std::sort(kept.begin(), kept.end());
  Distribution result;
  for (const int32_t id : kept) result.add(id, weight(id));
  result.normalise();
  return result;
}

// Deterministic cases: vocabulary, shape of the row (with many equal logits in every third) and
// filters all come from the counter-based generator.
TEST(Processor, FiltersEqualTheBruteForceOracle) {
  for (uint64_t trial = 0; trial < 3000; ++trial) {
    const auto random = [trial](uint32_t index) {
      return uniform(20260101, trial, Purpose::kSample, index);
    };
    const size_t vocab = 1 + static_cast<size_t>(random(0) * (trial % 10 == 0 ? 3000 : 40));
    const double spread = std::exp(6.0 * random(1) - 3.0);
    std::vector<float> logits(vocab);
    for (size_t i = 0; i < vocab; ++i) {
      const double noise = gumbel(7, trial, Purpose::kDraft, static_cast<uint32_t>(i));
      logits[i] = static_cast<float>(trial % 3 == 0 ? std::round(noise) : spread * noise);
    }
    const SamplingParams params = {
        .temperature = 0.05 + 1.9 * random(2),
        .top_p = random(3) < 0.4 ? 1.0 : std::max(1e-6, random(4)),
        .top_k = random(5) < 0.4 ? 0 : 1 + static_cast<int>(random(6) * 1.2 * double(vocab)),
        .min_p = random(7) < 0.4 ? 0.0 : random(8) * random(8)};
    const Distribution expected = brute_force(logits, params);
    const Distribution actual = process(logits, params);
    ASSERT_EQ(actual.ids, expected.ids)
        << "trial " << trial << " vocab " << vocab << " T " << params.temperature << " top_p "
        << params.top_p << " top_k " << params.top_k << " min_p " << params.min_p;
    ASSERT_EQ(actual.probabilities, expected.probabilities) << "trial " << trial;
  }
}

TEST(Processor, ReleasedVocabularySize) {
  constexpr size_t kVocabulary = 129280;
  std::vector<float> logits(kVocabulary);
  for (size_t i = 0; i < kVocabulary; ++i) {
    logits[i] = static_cast<float>(2 * gumbel(3, 0, Purpose::kDraft, static_cast<uint32_t>(i)));
  }
  for (const SamplingParams& params :
       {SamplingParams{}, SamplingParams{.top_p = 0.95}, SamplingParams{.top_k = 50},
        SamplingParams{.top_p = 0.999, .top_k = 100000, .min_p = 1e-6}}) {
    const Distribution expected = brute_force(logits, params);
    const Distribution actual = process(logits, params);
    EXPECT_EQ(actual.ids, expected.ids);
    EXPECT_EQ(actual.probabilities, expected.probabilities);
  }
}

}  // namespace
}  // namespace peregrine
