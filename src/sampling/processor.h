// Logits to the distribution a token is drawn from.
//
// The order, as users of other engines expect it:
//   1. repetition penalty over prompt and output: positive logits are divided by it, negative
//      ones multiplied; then frequency penalty times the output count and presence penalty once
//      are subtracted;
//   2. logit bias is added;
//   3. masked tokens (constrained decoding, forbidden ids) are removed;
//   4. temperature: softmax(logits / max(T, 1e-5)); T = 0 puts all mass on the argmax;
//   5. top-k keeps exactly the k most probable tokens;
//   6. top-p keeps the shortest run of most probable tokens whose mass, relative to what top-k
//      left, reaches top_p; at least one;
//   7. min-p keeps tokens with at least min_p times the probability of the most probable one;
//   8. the rest is normalised.
// "Most probable" means the higher adjusted logit, the lower id on equal logits, so the result is
// deterministic and exactly k tokens survive top-k.
//
// NaN logits count as minus infinity. If no token is left, all mass is on token 0. The row has at
// least one logit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sampling/distribution.h"
#include "sampling/output_constraint.h"
#include "sampling/params.h"
#include "sampling/token_counts.h"

namespace peregrine {

struct LogitRow {
  std::span<const float> logits;         // [vocab]
  const TokenCounts* counts = nullptr;   // needed only if params.uses_counts()
  std::span<const int32_t> masked = {};  // ids that must not be drawn
  const TokenSet* allowed = nullptr;     // the only ones that may; null: all
};

// Index of the largest value, the lowest on equal ones; NaN never wins; 0 for an empty or
// all-NaN row.
int32_t argmax(std::span<const float> values);

// Holds scratch memory for one vocabulary, so that steady decoding allocates nothing. One thread
// at a time. `params` must have passed validate().
class LogitProcessor {
 public:
  explicit LogitProcessor(int vocab_size);

  // Fills `result`; its capacity is reused.
  void process(const LogitRow& row, const SamplingParams& params, Distribution* result);

  // The token greedy decoding takes: argmax after steps 1 to 3.
  int32_t greedy_token(const LogitRow& row, const SamplingParams& params);

 private:
  struct Scale {
    float maximum;
    float temperature;
  };
  struct Candidate {
    float logit;
    float weight;  // exp((logit - maximum) / T)
    int32_t id;
  };
  static bool better(const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  }
  static bool lower_id(const Candidate& a, const Candidate& b) { return a.id < b.id; }
  static float weight_of(float logit, const Scale& scale);

  std::span<const float> adjusted(const LogitRow& row, const SamplingParams& params);
  double weigh_all(std::span<const float> logits, const Scale& scale);
  void collect(std::span<const float> logits, double floor);
  double collect_top_k(std::span<const float> logits, const Scale& scale, size_t k, double min_p);
  void keep_top_p(double target);
  void emit_all(double total, Distribution* result) const;
  void emit_candidates(Distribution* result);

  std::vector<float> adjusted_;
  std::vector<float> weights_;
  std::vector<Candidate> candidates_;
};

// The rows of one verification step: `logits` [drafts + 1, vocab], row i conditioned on
// drafts 0..i-1.
struct VerificationRows {
  std::span<const float> logits;
  std::span<const int32_t> drafts;
  TokenCounts* counts = nullptr;         // of the sequence before the drafts; unchanged on return
  std::span<const int32_t> masked = {};  // for every row
  std::span<const TokenSet* const> allowed = {};  // [drafts + 1], or none
};

// Processes row i exactly as a plain decode step would after drafts 0..i-1 had been emitted: their
// counts are added while later rows are processed. `p` becomes [drafts + 1].
void process_verification(LogitProcessor& processor, const VerificationRows& rows,
                          const SamplingParams& params, std::vector<Distribution>* p);

}  // namespace peregrine
