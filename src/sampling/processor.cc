#include "sampling/processor.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace peregrine {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr double kMinTemperature = 1e-5;

void apply_penalties(const TokenCounts& counts, const SamplingParams& params,
                     std::span<float> logits) {
  const float repetition = static_cast<float>(params.repetition_penalty);
  const float frequency = static_cast<float>(params.frequency_penalty);
  const float presence = static_cast<float>(params.presence_penalty);
  for (const auto& [id, entry] : counts.entries()) {
    float& logit = logits[static_cast<size_t>(id)];
    logit = logit > 0.0f ? logit / repetition : logit * repetition;
    if (entry.output > 0) {
      logit -= frequency * static_cast<float>(entry.output);
      logit -= presence;
    }
  }
}

}  // namespace

int32_t argmax(std::span<const float> values) {
  size_t best = 0;
  float best_value = kMinusInfinity;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] > best_value) {
      best = i;
      best_value = values[i];
    }
  }
  return static_cast<int32_t>(best);
}

LogitProcessor::LogitProcessor(int vocab_size) {
  adjusted_.reserve(static_cast<size_t>(vocab_size));
  weights_.reserve(static_cast<size_t>(vocab_size));
}

int32_t LogitProcessor::greedy_token(const LogitRow& row, const SamplingParams& params) {
  return argmax(adjusted(row, params));
}

// Steps 1 to 3. Without anything to do the input itself is returned, uncopied. Masked tokens stay
// at minus infinity because neither penalties nor bias can lift them: they come last here.
std::span<const float> LogitProcessor::adjusted(const LogitRow& row, const SamplingParams& params) {
  const bool penalties = params.uses_counts() && row.counts != nullptr;
  if (!penalties && params.logit_bias.empty() && row.masked.empty() && !row.allowed)
    return row.logits;
  adjusted_.assign(row.logits.begin(), row.logits.end());
  if (penalties) apply_penalties(*row.counts, params, adjusted_);
  for (const auto& [id, bias] : params.logit_bias) adjusted_[static_cast<size_t>(id)] += bias;
  for (const int32_t id : row.masked) adjusted_[static_cast<size_t>(id)] = kMinusInfinity;
  if (row.allowed)
    for (size_t id = 0; id < adjusted_.size(); ++id)
      if (!row.allowed->has(static_cast<int32_t>(id))) adjusted_[id] = kMinusInfinity;
  return adjusted_;
}

void LogitProcessor::process(const LogitRow& row, const SamplingParams& params,
                             Distribution* result) {
  const std::span<const float> logits = adjusted(row, params);
  result->clear();
  const int32_t best = argmax(logits);
  const float maximum = logits[static_cast<size_t>(best)];
  if (params.greedy() || !(maximum > kMinusInfinity)) {
    result->add(best, 1.0);
    return;
  }
  const Scale scale{
      .maximum = maximum,
      .temperature = static_cast<float>(std::max(params.temperature, kMinTemperature))};
  const bool top_k = params.top_k > 0 && static_cast<size_t>(params.top_k) < logits.size();
  double total = 0.0;
  if (top_k) {
    total = collect_top_k(logits, scale, static_cast<size_t>(params.top_k), params.min_p);
  } else {
    total = weigh_all(logits, scale);
    if (params.top_p >= 1.0 && params.min_p <= 0.0) {
      emit_all(total, result);
      return;
    }
    // Tokens below this weight have less than 1 - top_p of the mass together, so top-p never
    // reaches them (halved to stay clear of rounding).
    const double tail = 0.5 * (1.0 - params.top_p) * total / static_cast<double>(logits.size());
    collect(logits, std::max(tail, params.min_p));
  }
  if (params.top_p < 1.0) keep_top_p(params.top_p * total);
  emit_candidates(result);
}

float LogitProcessor::weight_of(float logit, const Scale& scale) {
  // Equal to an infinite maximum, the difference would be NaN.
  if (logit == scale.maximum) return 1.0f;
  const float weight = std::exp((logit - scale.maximum) / scale.temperature);
  return weight > 0.0f ? weight : 0.0f;  // a NaN has no weight
}

// Fills weights_ and returns their sum.
double LogitProcessor::weigh_all(std::span<const float> logits, const Scale& scale) {
  weights_.resize(logits.size());
  double total = 0.0;
  for (size_t id = 0; id < logits.size(); ++id) {
    weights_[id] = weight_of(logits[id], scale);
    total += weights_[id];
  }
  return total;
}

// Candidates are the tokens of at least `floor` weight. Min-p needs no step of its own: it keeps
// a run of the most probable tokens, as top-p does, and the shorter of two such runs is both.
void LogitProcessor::collect(std::span<const float> logits, double floor) {
  candidates_.clear();
  for (size_t id = 0; id < logits.size(); ++id) {
    if (weights_[id] > 0.0f && weights_[id] >= floor) {
      candidates_.push_back({logits[id], weights_[id], static_cast<int32_t>(id)});
    }
  }
}

// Candidates are the k best tokens, less those that min-p drops; the sum is over all k. One pass
// with a rising threshold: whenever 2k tokens are collected, the worse k go.
double LogitProcessor::collect_top_k(std::span<const float> logits, const Scale& scale, size_t k,
                                     double min_p) {
  candidates_.clear();
  float threshold = kMinusInfinity;
  const auto keep_k = [&] {
    std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<ptrdiff_t>(k - 1),
                     candidates_.end(), better);
    candidates_.resize(k);
    threshold = candidates_.back().logit;
  };
  for (size_t id = 0; id < logits.size(); ++id) {
    // An equal logit of a later id loses, so "greater" is enough.
    if (!(logits[id] > threshold)) continue;
    candidates_.push_back({logits[id], 0.0f, static_cast<int32_t>(id)});
    if (candidates_.size() == 2 * k) keep_k();
  }
  if (candidates_.size() > k) keep_k();
  // Sums are taken in id order wherever the set came from.
  std::sort(candidates_.begin(), candidates_.end(), lower_id);
  double total = 0.0;
  for (Candidate& candidate : candidates_) {
    candidate.weight = weight_of(candidate.logit, scale);
    total += candidate.weight;
  }
  std::erase_if(candidates_,
                [min_p](const Candidate& c) { return !(c.weight > 0.0f) || c.weight < min_p; });
  return total;
}

// Keeps the shortest run of best candidates whose weight reaches `target`. Sorts growing portions
// of the best, because the run is usually short.
void LogitProcessor::keep_top_p(double target) {
  size_t sorted = 0;
  size_t portion = 64;
  double mass = 0.0;
  while (sorted < candidates_.size()) {
    const size_t end = std::min(candidates_.size(), sorted + portion);
    const auto begin = candidates_.begin();
    const auto middle = begin + static_cast<ptrdiff_t>(end);
    const auto rest = begin + static_cast<ptrdiff_t>(sorted);
    if (end < candidates_.size()) std::nth_element(rest, middle, candidates_.end(), better);
    std::sort(rest, middle, better);
    for (size_t i = sorted; i < end; ++i) {
      mass += candidates_[i].weight;
      if (mass >= target) {
        candidates_.resize(i + 1);
        return;
      }
    }
    sorted = end;
    portion *= 4;
  }
}

// One pass that writes every token and steps on only where it keeps one: without filters this is
// most of the cost of a row.
void LogitProcessor::emit_all(double total, Distribution* result) const {
  result->ids.resize(weights_.size());
  result->probabilities.resize(weights_.size());
  size_t kept = 0;
  for (size_t id = 0; id < weights_.size(); ++id) {
    result->ids[kept] = static_cast<int32_t>(id);
    result->probabilities[kept] = weights_[id] / total;
    if (weights_[id] > 0.0f) ++kept;
  }
  result->ids.resize(kept);
  result->probabilities.resize(kept);
}

void LogitProcessor::emit_candidates(Distribution* result) {
  std::sort(candidates_.begin(), candidates_.end(), lower_id);
  for (const Candidate& candidate : candidates_) result->add(candidate.id, candidate.weight);
  result->normalise();
}

void process_verification(LogitProcessor& processor, const VerificationRows& rows,
                          const SamplingParams& params, std::vector<Distribution>* p) {
  const size_t n = rows.drafts.size();
  const size_t vocab = rows.logits.size() / (n + 1);
  const bool counted = params.uses_counts() && rows.counts != nullptr;
  p->resize(n + 1);
  for (size_t i = 0; i <= n; ++i) {
    if (counted && i > 0) rows.counts->add(rows.drafts[i - 1]);
    processor.process({.logits = rows.logits.subspan(i * vocab, vocab),
                       .counts = rows.counts,
                       .masked = rows.masked,
                       .allowed = rows.allowed.empty() ? nullptr : rows.allowed[i]},
                      params, &(*p)[i]);
  }
  if (!counted) return;
  for (const int32_t id : rows.drafts) rows.counts->remove(id);
}

}  // namespace peregrine
