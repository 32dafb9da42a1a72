#include "sampling/distribution.h"

#include <algorithm>

namespace peregrine {

void Distribution::clear() {
  ids.clear();
  probabilities.clear();
}

void Distribution::add(int32_t id, double weight) {
  ids.push_back(id);
  probabilities.push_back(weight);
}

void Distribution::normalise() {
  double total = 0.0;
  for (const double p : probabilities) total += p;
  for (double& p : probabilities) p /= total;
}

double Distribution::at(int32_t id) const {
  const auto found = std::lower_bound(ids.begin(), ids.end(), id);
  if (found == ids.end() || *found != id) return 0.0;
  return probabilities[static_cast<size_t>(found - ids.begin())];
}

Distribution one_hot(int32_t id) { return {.ids = {id}, .probabilities = {1.0}}; }

Distribution from_dense(std::span<const double> weights) {
  Distribution result;
  for (size_t id = 0; id < weights.size(); ++id) {
    if (weights[id] > 0.0) result.add(static_cast<int32_t>(id), weights[id]);
  }
  result.normalise();
  return result;
}

int32_t sample(const Distribution& distribution, double u) {
  double total = 0.0;
  for (const double p : distribution.probabilities) total += p;
  const double target = u * total;
  double running = 0.0;
  for (size_t i = 0; i < distribution.size(); ++i) {
    running += distribution.probabilities[i];
    if (running > target) return distribution.ids[i];
  }
  return distribution.ids.back();  // u * total rounded up to the total
}

int32_t sample_race(const Distribution& distribution, std::span<const float> noise) {
  int32_t best = distribution.ids.front();
  double best_quotient = -1.0;
  for (size_t i = 0; i < distribution.size(); ++i) {
    const int32_t id = distribution.ids[i];
    const double quotient = distribution.probabilities[i] / noise[static_cast<size_t>(id)];
    if (quotient > best_quotient) {
      best = id;
      best_quotient = quotient;
    }
  }
  return best;
}

}  // namespace peregrine
