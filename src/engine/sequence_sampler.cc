#include "engine/sequence_sampler.h"

#include <random>

namespace peregrine {

uint64_t random_seed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

SequenceSampler::SequenceSampler(const SamplingParams& params, uint64_t seed,
                                 std::span<const int32_t> masked)
    : params_(params), seed_(seed), masked_(masked) {
  if (params_.constraint) constrained_.emplace(params_.constraint);
}

// The sets of the rows of a block, none without a constraint. The last is the one behind all
// drafts.
std::vector<const TokenSet*> SequenceSampler::allowed_sets(std::span<const int32_t> drafts) {
  std::vector<const TokenSet*> sets;
  if (!constrained_) return sets;
  ConstrainedOutput::Place place = constrained_->place();
  sets.push_back(&constrained_->allowed(place));
  for (const int32_t draft : drafts) {
    place = constrained_->behind(place, draft);
    sets.push_back(&constrained_->allowed(place));
  }
  return sets;
}

// The last of them alone; null without a constraint.
const TokenSet* SequenceSampler::allowed_behind(std::span<const int32_t> drafts) {
  if (!constrained_) return nullptr;
  ConstrainedOutput::Place place = constrained_->place();
  for (const int32_t draft : drafts) place = constrained_->behind(place, draft);
  return &constrained_->allowed(place);
}

void SequenceSampler::add_prompt(std::span<const int32_t> tokens) {
  if (!params_.uses_counts()) return;
  for (const int32_t token : tokens) counts_.add_prompt(token);
}

int32_t SequenceSampler::sample(LogitProcessor& processor, std::span<const float> logits,
                                int64_t position) {
  const LogitRow row{
      .logits = logits, .counts = &counts_, .masked = masked_, .allowed = allowed_behind({})};
  if (params_.greedy()) return processor.greedy_token(row, params_);
  rows_.resize(1);
  processor.process(row, params_, &rows_[0]);
  return draw(rows_[0], {seed_, static_cast<uint64_t>(position)}, Purpose::kSample);
}

void SequenceSampler::draft(LogitProcessor& processor, std::span<const float> logits,
                            int64_t position, Drafts& drafts) {
  // A slot is penalised as a plain step behind the earlier drafts would be.
  if (params_.uses_counts())
    for (const int32_t token : drafts.tokens) counts_.add(token);
  const LogitRow row{.logits = logits,
                     .counts = &counts_,
                     .masked = masked_,
                     .allowed = allowed_behind(drafts.tokens)};
  const auto slot = static_cast<uint32_t>(drafts.tokens.size());
  int32_t token;
  if (params_.greedy()) {
    token = processor.greedy_token(row, params_);
  } else {
    drafts.q.emplace_back();
    processor.process(row, params_, &drafts.q.back());
    token = draw(drafts.q.back(), {seed_, static_cast<uint64_t>(position)}, Purpose::kDraft, slot);
  }
  if (params_.uses_counts())
    for (const int32_t earlier : drafts.tokens) counts_.remove(earlier);
  drafts.tokens.push_back(token);
}

VerifyResult SequenceSampler::verify(LogitProcessor& processor, std::span<const float> rows,
                                     const Drafts& drafts, int64_t position, VerifyMethod method) {
  const auto allowed = allowed_sets(drafts.tokens);
  if (!params_.greedy()) {
    process_verification(processor,
                         {.logits = rows,
                          .drafts = drafts.tokens,
                          .counts = &counts_,
                          .masked = masked_,
                          .allowed = allowed},
                         params_, &rows_);
    return peregrine::verify(method, {.p = rows_, .q = drafts.q, .drafts = drafts.tokens},
                             DrawKey{seed_, static_cast<uint64_t>(position)});
  }
  const size_t n = drafts.tokens.size(), vocab = rows.size() / (n + 1);
  std::vector<int32_t> best(n + 1);
  for (size_t i = 0; i <= n; ++i) {
    best[i] = processor.greedy_token({.logits = rows.subspan(i * vocab, vocab),
                                      .counts = &counts_,
                                      .masked = masked_,
                                      .allowed = allowed.empty() ? nullptr : allowed[i]},
                                     params_);
    if (i < n && params_.uses_counts()) counts_.add(drafts.tokens[i]);
  }
  if (params_.uses_counts())
    for (const int32_t token : drafts.tokens) counts_.remove(token);
  return verify_greedy(best, drafts.tokens);
}

}  // namespace peregrine
