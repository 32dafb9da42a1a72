// Drawing tokens and log-probabilities.
#include "sampling/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "sampling/chi_square.h"
#include "sampling/processor.h"
#include "support/fixtures.h"

namespace peregrine {
namespace {

TEST(Distribution, LooksUpKeptTokens) {
  const Distribution distribution = from_dense(std::vector<double>{0, 1, 0, 3});
  EXPECT_EQ(distribution.ids, (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(distribution.at(0), 0.0);
  EXPECT_EQ(distribution.at(1), 0.25);
  EXPECT_EQ(distribution.at(3), 0.75);
  EXPECT_EQ(distribution.at(9), 0.0);
}

TEST(Distribution, InverseCdfBoundaries) {
  const Distribution distribution = from_dense(std::vector<double>{0.25, 0, 0.5, 0.25});
  EXPECT_EQ(sample(distribution, 0.0), 0);
  EXPECT_EQ(sample(distribution, 0.25 - 0x1p-53), 0);
  EXPECT_EQ(sample(distribution, 0.25), 2);
  EXPECT_EQ(sample(distribution, 0.75), 3);
  EXPECT_EQ(sample(distribution, 1.0 - 0x1p-53), 3);
}

const std::vector<double> kWeights = {0.02, 0.3, 0.0, 0.08, 0.45, 0.1, 0.05};

TEST(Sampler, DrawsHaveTheDistribution) {
  const Distribution distribution = from_dense(kWeights);
  std::vector<int64_t> by_position(kWeights.size(), 0);
  std::vector<int64_t> by_seed(kWeights.size(), 0);
  std::vector<int64_t> by_slot(kWeights.size(), 0);
  for (uint64_t i = 0; i < 50000; ++i) {
    const auto count = [&](std::vector<int64_t>& counts, int32_t id) {
      ++counts[static_cast<size_t>(id)];
    };
    count(by_position, draw(distribution, {.seed = 1, .position = i}, Purpose::kSample));
    count(by_seed, draw(distribution, {.seed = i, .position = 1}, Purpose::kBonus));
    count(by_slot, draw(distribution, {.seed = 1, .position = 1}, Purpose::kDraft,
                        static_cast<uint32_t>(i)));
  }
  EXPECT_TRUE(test::chi_square(by_position, kWeights).passes());
  EXPECT_TRUE(test::chi_square(by_seed, kWeights).passes());
  EXPECT_TRUE(test::chi_square(by_slot, kWeights).passes());
  std::vector<double> wrong = kWeights;
  wrong[0] += 0.01;
  wrong[4] -= 0.01;
  EXPECT_FALSE(test::chi_square(by_position, wrong).passes());
}

TEST(Sampler, RaceHasTheDistribution) {
  const Distribution distribution = from_dense(kWeights);
  std::vector<int64_t> counts(kWeights.size(), 0);
  std::vector<float> noise(kWeights.size());
  for (uint64_t i = 0; i < 50000; ++i) {
    for (size_t id = 0; id < noise.size(); ++id) {
      noise[id] =
          static_cast<float>(exponential(3, i, Purpose::kSample, static_cast<uint32_t>(id)));
    }
    ++counts[static_cast<size_t>(sample_race(distribution, noise))];
  }
  EXPECT_TRUE(test::chi_square(counts, kWeights).passes());
}

// argmax(p / noise) of the reference code at three temperatures, and its greedy tokens.
TEST(Sampler, ReferenceDraws) {
  const test::Fixture fixture(test::data_path("kernels/expected.safetensors"));
  constexpr size_t kRows = 20;
  constexpr size_t kVocab = 50;
  const std::vector<float> logits = fixture.floats("sample.logits");
  const std::vector<float> noise = fixture.floats("sample.noise");
  ASSERT_EQ(logits.size(), kRows * kVocab);
  LogitProcessor processor(kVocab);
  Distribution distribution;
  for (const char* temperature : {"0", "0.5", "1.0", "1.7"}) {
    const std::string suffix = std::string("t") + temperature;
    const SamplingParams params = {.temperature = std::stod(temperature)};
    const std::vector<int32_t> tokens = fixture.ints("sample.token." + suffix);
    for (size_t row = 0; row < kRows; ++row) {
      const auto part = [&](const std::vector<float>& values) {
        return std::span(values).subspan(row * kVocab, kVocab);
      };
      processor.process({.logits = part(logits)}, params, &distribution);
      EXPECT_EQ(sample_race(distribution, part(noise)), tokens[row]) << suffix << " row " << row;
      if (params.greedy()) continue;
      const std::vector<float> expected = fixture.floats("sample.probs." + suffix);
      for (size_t id = 0; id < kVocab; ++id) {
        // Rounding of logit / T (an absolute error in the exponent), of exp and of the quotient.
        const double epsilon = std::numeric_limits<float>::epsilon();
        const float largest = part(logits)[static_cast<size_t>(argmax(part(logits)))];
        const double exponent = std::abs(part(logits)[id]) + std::abs(largest);
        const double bound = epsilon * (4.0 + 2.0 * exponent / params.temperature);
        const double value = part(expected)[id];
        EXPECT_NEAR(distribution.at(static_cast<int32_t>(id)), value, value * bound)
            << suffix << " row " << row << " token " << id;
      }
    }
  }
}

TEST(Logprobs, ChosenAndTop) {
  std::vector<float> logits;
  for (const double p : {0.1, 0.4, 0.1, 0.25, 0.15}) {
    logits.push_back(static_cast<float>(std::log(p)) + 5.0f);
  }
  const TokenLogprobs result = log_probabilities(logits, 4, 4);
  EXPECT_EQ(result.chosen.id, 4);
  EXPECT_NEAR(result.chosen.logprob, std::log(0.15), 1e-6);
  ASSERT_EQ(result.top.size(), 4u);
  const int32_t ids[4] = {1, 3, 4, 0};  // 0 before 2: equal logits, lower id
  const double values[4] = {0.4, 0.25, 0.15, 0.1};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(result.top[i].id, ids[i]);
    EXPECT_NEAR(result.top[i].logprob, std::log(values[i]), 1e-6);
  }
}

TEST(Logprobs, FewerTokensThanAsked) {
  EXPECT_EQ(log_probabilities(std::vector<float>{1, 2}, 0, 20).top.size(), 2u);
  EXPECT_TRUE(log_probabilities(std::vector<float>{1, 2}, 0, 0).top.empty());
}

TEST(Logprobs, LargeAndInfiniteLogits) {
  const float infinity = std::numeric_limits<float>::infinity();
  const TokenLogprobs large = log_probabilities(std::vector<float>{3e38f, 0, -infinity}, 0, 3);
  EXPECT_EQ(large.chosen.logprob, 0.0);
  EXPECT_EQ(large.top[2].logprob, -infinity);
  const TokenLogprobs nan =
      log_probabilities(std::vector<float>{0, std::numeric_limits<float>::quiet_NaN(), 0}, 0, 3);
  EXPECT_NEAR(nan.chosen.logprob, std::log(0.5), 1e-12);
  EXPECT_EQ(nan.top.size(), 2u);
}

}  // namespace
}  // namespace peregrine
