#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace peregrine {
namespace {

// log(sum(exp(logits))), relative to the largest so that it cannot overflow.
double log_sum_exp(std::span<const float> logits) {
  double maximum = -std::numeric_limits<double>::infinity();
  for (const float logit : logits) {
    if (logit > maximum) maximum = logit;
  }
  if (!std::isfinite(maximum)) return maximum;
  double sum = 0.0;
  for (const float logit : logits) {
    if (!std::isnan(logit)) sum += std::exp(logit - maximum);
  }
  return maximum + std::log(sum);
}

// Ids of the n largest logits in descending order. A sorted list of n is cheap to keep: n is at
// most 20, and few logits of a row enter it.
std::vector<int32_t> top_ids(std::span<const float> logits, size_t n) {
  std::vector<int32_t> top;
  top.reserve(n + 1);
  const auto value = [&](int32_t id) { return logits[static_cast<size_t>(id)]; };
  for (size_t i = 0; i < logits.size(); ++i) {
    const float logit = logits[i];
    if (std::isnan(logit) || (top.size() == n && !(n > 0 && logit > value(top.back())))) continue;
    const auto place =
        std::upper_bound(top.begin(), top.end(), logit,
                         [&](float candidate, int32_t id) { return candidate > value(id); });
    top.insert(place, static_cast<int32_t>(i));
    if (top.size() > n) top.pop_back();
  }
  return top;
}

}  // namespace

double draw_uniform(const DrawKey& key, Purpose purpose, uint32_t slot) {
  return uniform(key.seed, key.position, purpose, slot);
}

int32_t draw(const Distribution& distribution, const DrawKey& key, Purpose purpose, uint32_t slot) {
  return sample(distribution, draw_uniform(key, purpose, slot));
}

TokenLogprobs log_probabilities(std::span<const float> logits, int32_t chosen, int top_n) {
  const double normaliser = log_sum_exp(logits);
  const auto entry = [&](int32_t id) {
    return TokenLogprob{.id = id, .logprob = logits[static_cast<size_t>(id)] - normaliser};
  };
  TokenLogprobs result{.chosen = entry(chosen), .top = {}};
  for (const int32_t id : top_ids(logits, static_cast<size_t>(top_n))) {
    result.top.push_back(entry(id));
  }
  return result;
}

}  // namespace peregrine
