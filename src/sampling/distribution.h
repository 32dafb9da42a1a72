// A probability distribution over token ids that stores only the tokens it keeps.
//
// Ids ascend, probabilities are positive and sum to 1 up to double rounding. Filters such as
// top-p leave a few dozen of 129280 tokens; nothing here ever fills in the zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace peregrine {

struct Distribution {
  std::vector<int32_t> ids;
  std::vector<double> probabilities;

  size_t size() const { return ids.size(); }
  bool empty() const { return ids.empty(); }
  void clear();
  void add(int32_t id, double weight);  // ids must come in ascending order; weight > 0
  void normalise();                     // divides by the sum, taken in id order

  // Probability of a token; 0 when it is not kept.
  double at(int32_t id) const;
};

// All mass on one token.
Distribution one_hot(int32_t id);

// From a dense row of non-negative weights; zeros are left out.
Distribution from_dense(std::span<const double> weights);

// Inverse CDF in id order: the smallest id whose running sum exceeds u times the total.
// `u` in [0, 1); the distribution is not empty.
int32_t sample(const Distribution& distribution, double u);

// The id with the largest probability / noise, the lower id on equal quotients. With independent
// Exp(1) noise this draws from the distribution without a running sum, which is how a device
// samples; `noise` [vocab], positive.
int32_t sample_race(const Distribution& distribution, std::span<const float> noise);

}  // namespace peregrine
