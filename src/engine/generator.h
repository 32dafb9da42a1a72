// Token generation on one session: plain or speculative decoding (spec: speculation.md).
//
// The session is synchronised to the prompt by the caller. Every call of next() runs one step and
// gives the tokens it made sure. Output has exactly the distribution of plain sampling; greedy
// output is the same tokens with and without drafts.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/sequence_sampler.h"
#include "peregrine/generation.h"
#include "peregrine/session.h"
#include "sampling/draft_choice.h"

namespace peregrine {

struct GenerateOptions {
  SamplingParams sampling;
  int max_tokens = 0;               // at least 1
  std::vector<int32_t> stop_ids;    // end the output; the stop token itself is emitted
  std::vector<int32_t> masked_ids;  // never sampled
  DraftOptions draft;
};

enum class GenerateEnd { kRunning, kStop, kLength };

struct GenerateStats {
  int64_t steps = 0;     // model steps
  int64_t tokens = 0;    // emitted
  int64_t drafted = 0;   // slots the drafter filled
  int64_t verified = 0;  // drafts that a model step checked
  int64_t accepted = 0;
  std::array<int64_t, kMaxDrafts> verified_at{};  // by position in the block
  std::array<int64_t, kMaxDrafts> accepted_at{};
  double step_us = 0;   // spent in model steps
  double draft_us = 0;  // spent in drafter passes

  // Mean of accepted + 1 over steps.
  double acceptance_length() const {
    return steps == 0 ? 0 : static_cast<double>(accepted + steps) / static_cast<double>(steps);
  }
};

class Generator {
 public:
  // The session has logits (it was synchronised) and draft_rows for the longest block. Throws
  // Error(kInvalidArgument) for options out of range.
  Generator(Session& session, const GenerateOptions& options);

  // Tokens of the next step: none once finished. With logprobs asked for, `logprobs` has one entry
  // a token.
  std::span<const int32_t> next();
  std::span<const TokenLogprobs> logprobs() const { return logprobs_; }

  GenerateEnd end() const { return finish_; }
  const GenerateStats& stats() const { return stats_; }

 private:
  int planned_drafts();
  DraftPrices prices() const;
  void draft(int count);
  void plain_step();
  void record_step(int accepted, double us);
  void speculative_step();
  void emit(int32_t token, std::span<const float> logits);

  Session& session_;
  int64_t prompt_length_;
  GenerateOptions options_;
  LogitProcessor processor_;
  SequenceSampler sampler_;
  Drafts drafts_;
  DraftChoice choice_;             // kAuto
  double draft_us_ = 0;            // time of the last drafter pass
  std::optional<int32_t> anchor_;  // emitted, not yet in the session
  std::vector<int32_t> emitted_;
  std::vector<TokenLogprobs> logprobs_;
  GenerateEnd finish_ = GenerateEnd::kRunning;
  GenerateStats stats_;
};

}  // namespace peregrine
