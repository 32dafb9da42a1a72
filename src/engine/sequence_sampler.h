// The sampling state of one sequence: its parameters, token counts and random key. Turns logit rows
// into tokens, drafts and verdicts; plain and speculative decoding of any caller go through here,
// so that they agree token for token.
//
// Every number drawn depends on (seed, position) and on the drafts' own confidences alone, never on
// the batch or on scheduling. Not thread-safe; the processor is scratch shared by sequences.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "peregrine/generation.h"
#include "sampling/output_constraint.h"
#include "sampling/processor.h"
#include "sampling/sampler.h"
#include "sampling/token_counts.h"
#include "sampling/verify.h"

namespace peregrine {

// Drafts of one block, slot by slot.
struct Drafts {
  std::vector<int32_t> tokens;
  std::vector<Distribution> q;  // what each was drawn from; empty for greedy requests
  std::vector<float> scores;    // raw confidences of the slots looked at; may be one longer

  void clear() {
    tokens.clear();
    q.clear();
    scores.clear();
  }
  // Keeps the first n drafts.
  void cut(size_t n) {
    tokens.resize(n);
    if (!q.empty()) q.resize(n);
  }
};

class SequenceSampler {
 public:
  // `masked`: ids that must not be drawn; must outlive this object. Params have passed validate().
  SequenceSampler(const SamplingParams& params, uint64_t seed, std::span<const int32_t> masked);

  void add_prompt(std::span<const int32_t> tokens);
  // A token has become part of the output.
  void add_output(int32_t token) {
    if (params_.uses_counts()) counts_.add(token);
    if (constrained_) constrained_->add_output(token);
  }

  // The token at `position` from the logits of the position before it.
  int32_t sample(LogitProcessor& processor, std::span<const float> logits, int64_t position);

  // Draws the draft of slot drafts.tokens.size() of a step whose first decided position is
  // `position`, from the drafter's logits, and appends it.
  void draft(LogitProcessor& processor, std::span<const float> logits, int64_t position,
             Drafts& drafts);

  // Verdict over the rows [drafts + 1, vocab] of a verification step deciding `position` first.
  VerifyResult verify(LogitProcessor& processor, std::span<const float> rows, const Drafts& drafts,
                      int64_t position, VerifyMethod method);

  const SamplingParams& params() const { return params_; }

 private:
  std::vector<const TokenSet*> allowed_sets(std::span<const int32_t> drafts);
  const TokenSet* allowed_behind(std::span<const int32_t> drafts);

  SamplingParams params_;
  uint64_t seed_;
  std::span<const int32_t> masked_;
  TokenCounts counts_;
  std::optional<ConstrainedOutput> constrained_;
  std::vector<Distribution> rows_;  // scratch of verify()
};

// A seed for requests that name none.
uint64_t random_seed();

}  // namespace peregrine
