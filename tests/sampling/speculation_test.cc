// The whole host path of speculation, from logits to emitted tokens, for sampling settings whose
// distribution depends on what was emitted before: filters and penalties together.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "sampling/chi_square.h"
#include "sampling/processor.h"
#include "sampling/verify.h"

namespace peregrine {
namespace {

constexpr size_t kVocab = 4;
constexpr size_t kDrafts = 3;
constexpr size_t kEmitted = 3;
constexpr int kTrials = 20000;
constexpr int32_t kPrompt = 1;

// Logits of the model and the drafter after each token.
struct Tables {
  std::array<std::array<float, kVocab>, kVocab> model, drafter;

  explicit Tables(uint64_t seed) {
    for (size_t context = 0; context < kVocab; ++context) {
      for (size_t v = 0; v < kVocab; ++v) {
        const auto noise = [&](uint32_t which) {
          return static_cast<float>(
              gumbel(seed, context, Purpose::kSample, which * 16 + static_cast<uint32_t>(v)));
        };
        model[context][v] = noise(0);
        drafter[context][v] = noise(0) + noise(1);
      }
    }
  }
};

TokenCounts counts_after(const std::vector<int32_t>& emitted) {
  TokenCounts counts;
  counts.add_prompt(kPrompt);
  for (const int32_t id : emitted) counts.add(id);
  return counts;
}

// The law of the first tokens under plain sampling, by following every branch.
void add_plain_law(const Tables& tables, const SamplingParams& params, std::vector<int32_t> emitted,
                   double probability, std::vector<double>* law) {
  if (emitted.size() == kEmitted) {
    size_t index = 0;
    for (const int32_t id : emitted) index = index * kVocab + static_cast<size_t>(id);
    (*law)[index] += probability;
    return;
  }
  const size_t context = static_cast<size_t>(emitted.empty() ? kPrompt : emitted.back());
  const TokenCounts counts = counts_after(emitted);
  LogitProcessor processor(kVocab);
  Distribution next;
  processor.process({.logits = tables.model[context], .counts = &counts}, params, &next);
  for (size_t i = 0; i < next.size(); ++i) {
    std::vector<int32_t> longer = emitted;
    longer.push_back(next.ids[i]);
    add_plain_law(tables, params, longer, probability * next.probabilities[i], law);
  }
}

// One step: draft, gather the model's rows, verify. Returns the emitted tokens.
std::vector<int32_t> step(const Tables& tables, const SamplingParams& params, VerifyMethod method,
                          int32_t last, TokenCounts* counts, const DrawKey& key) {
  LogitProcessor processor(kVocab);
  std::vector<Distribution> q(kDrafts), p;
  std::vector<int32_t> drafts;
  std::vector<float> logits;
  size_t context = static_cast<size_t>(last);
  for (size_t i = 0; i < kDrafts; ++i) {
    logits.insert(logits.end(), tables.model[context].begin(), tables.model[context].end());
    // The drafter samples by temperature alone: q is whatever it really drew from.
    processor.process({.logits = tables.drafter[context]}, {.temperature = params.temperature},
                      &q[i]);
    drafts.push_back(draw(q[i], key, Purpose::kDraft, static_cast<uint32_t>(i)));
    context = static_cast<size_t>(drafts.back());
  }
  logits.insert(logits.end(), tables.model[context].begin(), tables.model[context].end());
  process_verification(processor, {.logits = logits, .drafts = drafts, .counts = counts}, params,
                       &p);
  const VerifyResult result = verify(method, {.p = p, .q = q, .drafts = drafts}, key);
  drafts.resize(static_cast<size_t>(result.accepted));
  drafts.push_back(result.bonus);
  return drafts;
}

TEST(Speculation, FiltersAndPenaltiesKeepThePlainDistribution) {
  const std::array<SamplingParams, 4> settings = {
      SamplingParams{.temperature = 0.8, .top_p = 0.85},
      SamplingParams{.top_k = 2},
      SamplingParams{.temperature = 1.3, .min_p = 0.15, .repetition_penalty = 1.5},
      SamplingParams{.top_p = 0.95, .presence_penalty = 0.7, .frequency_penalty = 0.9},
  };
  for (size_t s = 0; s < settings.size(); ++s) {
    const Tables tables(40 + s);
    std::vector<double> law(kVocab * kVocab * kVocab, 0.0);
    add_plain_law(tables, settings[s], {}, 1.0, &law);
    for (const VerifyMethod method : {VerifyMethod::kRejection, VerifyMethod::kBlock}) {
      std::vector<int64_t> observed(law.size(), 0);
      for (int trial = 0; trial < kTrials; ++trial) {
        TokenCounts counts = counts_after({});
        std::vector<int32_t> emitted;
        while (emitted.size() < kEmitted) {
          const DrawKey key{.seed = static_cast<uint64_t>(trial), .position = emitted.size()};
          const int32_t last = emitted.empty() ? kPrompt : emitted.back();
          for (const int32_t id : step(tables, settings[s], method, last, &counts, key)) {
            emitted.push_back(id);
            counts.add(id);
          }
        }
        size_t index = 0;
        for (size_t i = 0; i < kEmitted; ++i) {
          index = index * kVocab + static_cast<size_t>(emitted[i]);
        }
        ++observed[index];
      }
      const test::ChiSquare result = test::chi_square(observed, law);
      EXPECT_TRUE(result.passes())
          << "setting " << s << ": " << result.statistic << " against " << result.critical;
    }
  }
}

// Greedy: every penalised row is one-hot, so both methods emit what plain greedy decoding does.
TEST(Speculation, GreedyWithPenaltiesEqualsPlainGreedy) {
  const SamplingParams params = {.temperature = 0, .frequency_penalty = 0.8};
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Tables tables(seed);
    std::vector<int32_t> plain;
    LogitProcessor processor(kVocab);
    while (plain.size() < 12) {
      const TokenCounts counts = counts_after(plain);
      const size_t context = static_cast<size_t>(plain.empty() ? kPrompt : plain.back());
      plain.push_back(
          processor.greedy_token({.logits = tables.model[context], .counts = &counts}, params));
    }
    for (const VerifyMethod method : {VerifyMethod::kRejection, VerifyMethod::kBlock}) {
      TokenCounts counts = counts_after({});
      std::vector<int32_t> emitted;
      while (emitted.size() < 12) {
        const int32_t last = emitted.empty() ? kPrompt : emitted.back();
        const DrawKey key{.seed = seed, .position = emitted.size()};
        for (const int32_t id : step(tables, params, method, last, &counts, key)) {
          emitted.push_back(id);
          counts.add(id);
        }
      }
      emitted.resize(12);
      ASSERT_EQ(emitted, plain) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace peregrine
