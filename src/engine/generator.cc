#include "engine/generator.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <random>

#include "base/fail.h"
#include "engine/session_impl.h"
#include "sampling/draft_length.h"

namespace peregrine {
namespace {

class Timer {
 public:
  double microseconds() const {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start_)
        .count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

uint64_t random_seed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

}  // namespace

Generator::Generator(Session& session, const GenerateOptions& options)
    : session_(session),
      options_(options),
      seed_(options.sampling.seed ? *options.sampling.seed : random_seed()),
      processor_(session.impl().vocab()),
      survival_(std::max(1, options.draft.drafts)) {
  validate(options.sampling, session.impl().vocab());
  if (options.max_tokens < 1)
    fail(ErrorKind::kInvalidArgument, "max tokens {}: expected at least 1", options.max_tokens);
  DraftOptions& draft = options_.draft;
  if (draft.mode != DraftMode::kOff) {
    if (draft.drafts < 1 || draft.drafts > kMaxDrafts)
      fail(ErrorKind::kInvalidArgument, "draft block of {}: expected 1 to {}", draft.drafts,
           kMaxDrafts);
    if (draft.threshold < 0 || draft.threshold > 1)
      fail(ErrorKind::kInvalidArgument, "draft threshold {}: expected 0 to 1", draft.threshold);
    if (!session.impl().drafter)
      draft.mode = DraftMode::kOff;
    else
      draft.drafts = std::min(draft.drafts, session.impl().options.draft_rows);
  }
  if (session.logits().empty())
    fail(ErrorKind::kInvalidArgument,
         "generation needs a synchronised prompt: the session has no logits");
  if (options_.sampling.uses_counts())
    for (const int32_t token : session.tokens()) counts_.add_prompt(token);
}

LogitRow Generator::row(std::span<const float> logits) const {
  return {.logits = logits, .counts = &counts_, .masked = options_.masked_ids};
}

int32_t Generator::sample_row(std::span<const float> logits, uint64_t position) {
  if (options_.sampling.greedy()) return processor_.greedy_token(row(logits), options_.sampling);
  Distribution p;
  processor_.process(row(logits), options_.sampling, &p);
  return draw(p, {seed_, position}, Purpose::kSample);
}

void Generator::emit(int32_t token, std::span<const float> logits) {
  if (finish_ != GenerateEnd::kRunning) return;  // cut behind a stop inside a block
  emitted_.push_back(token);
  ++stats_.tokens;
  if (options_.sampling.logprobs)
    logprobs_.push_back(log_probabilities(logits, token, *options_.sampling.logprobs));
  if (std::find(options_.stop_ids.begin(), options_.stop_ids.end(), token) !=
      options_.stop_ids.end())
    finish_ = GenerateEnd::kStop;
  else if (stats_.tokens >= options_.max_tokens)
    finish_ = GenerateEnd::kLength;
}

std::span<const int32_t> Generator::next() {
  emitted_.clear();
  logprobs_.clear();
  if (finish_ != GenerateEnd::kRunning) return {};
  if (!anchor_) {
    // The prompt's own logits decide the first token.
    const auto logits = session_.logits();
    const int32_t token = sample_row(logits, static_cast<uint64_t>(session_.length()));
    emit(token, logits);
    counts_.add(token);
    anchor_ = token;
    return emitted_;
  }
  if (session_.length() >= session_.impl().options.context_tokens) {
    finish_ = GenerateEnd::kLength;
    return {};
  }
  const int planned = planned_drafts();
  const Drafts drafts = planned > 0 ? draft(planned) : Drafts{};
  if (drafts.tokens.empty()) {
    plain_step();
  } else {
    speculative_step(drafts);
  }
  ++stats_.steps;
  return emitted_;
}

// How many slots to draft: bounded by what may still be emitted and by the context.
int Generator::planned_drafts() {
  const DraftOptions& draft = options_.draft;
  if (draft.mode == DraftMode::kOff) return 0;
  const int64_t room = session_.impl().options.context_tokens - session_.length() - 1;
  const int64_t wanted = options_.max_tokens - stats_.tokens - 1;
  const int most = static_cast<int>(std::clamp<int64_t>(std::min(room, wanted), 0, draft.drafts));
  if (draft.mode == DraftMode::kFixed || most == 0) return most;

  // Measure first: a plain step, then the longest block.
  if (step_times_.empty()) return 0;
  if (draft_pass_us_ == 0) return most;
  plan_ = plan_drafts({.step_us = [this](int rows) { return step_times_.estimate(rows); },
                       .draft_us = draft_pass_us_},
                      survival_.survival());
  return std::min(most, plan_->drafts);
}

Generator::Drafts Generator::draft(int count) {
  const Timer timer;
  Session::Impl& s = session_.impl();
  Drafter& drafter = *s.drafter;
  const DraftSegment segment{s.slot, session_.length(), *anchor_, count};
  drafter.begin(std::span(&segment, 1));

  Drafts drafts;
  std::vector<float> scores, logits(static_cast<size_t>(s.vocab()));
  const DrawKey key{seed_, static_cast<uint64_t>(session_.length()) + 1};
  int32_t previous = *anchor_;
  const int first[] = {0};
  for (int i = 0; i < count; ++i) {
    drafter.next(i, first, std::span(&previous, 1));
    float score;
    s.backend().copy_out(&score, drafter.confidence().data, sizeof(score));
    scores.push_back(score);
    const bool worth = options_.draft.mode == DraftMode::kAuto && plan_
                           ? cut_drafts(*plan_, scores) > i
                           : survival_from_scores(scores).back() >=
                                 slot_threshold(i, count, options_.draft.threshold);
    if (!worth) break;
    s.backend().copy_out(logits.data(), drafter.logits().data, logits.size() * sizeof(float));
    if (options_.sampling.greedy()) {
      previous = processor_.greedy_token(row(logits), options_.sampling);
    } else {
      drafts.q.emplace_back();
      processor_.process(row(logits), options_.sampling, &drafts.q.back());
      previous = draw(drafts.q.back(), key, Purpose::kDraft, static_cast<uint32_t>(i));
    }
    drafts.tokens.push_back(previous);
    counts_.add(previous);  // the next slot is penalised as a plain step after it would be
  }
  for (const int32_t token : drafts.tokens) counts_.remove(token);
  stats_.drafted += static_cast<int64_t>(drafts.tokens.size());
  const double us = timer.microseconds();
  stats_.draft_us += us;
  draft_pass_us_ = draft_pass_us_ == 0 ? us : 0.9 * draft_pass_us_ + 0.1 * us;
  return drafts;
}

void Generator::plain_step() {
  const Timer timer;
  const auto position = static_cast<uint64_t>(session_.length()) + 1;
  const auto logits = session_.step(*anchor_);
  const double us = timer.microseconds();
  stats_.step_us += us;
  step_times_.record(1, us);
  const int32_t token = sample_row(logits, position);
  emit(token, logits);
  counts_.add(token);
  anchor_ = token;
}

// Distributions of the rows as plain steps would process them, then the verdict.
VerifyResult Generator::verify_rows(std::span<const float> rows, const Drafts& drafts) {
  const size_t n = drafts.tokens.size(), vocab = static_cast<size_t>(session_.impl().vocab());
  std::vector<int32_t> best;
  std::vector<Distribution> p(options_.sampling.greedy() ? 0 : n + 1);
  for (size_t i = 0; i <= n; ++i) {
    const LogitRow logits = row(rows.subspan(i * vocab, vocab));
    if (options_.sampling.greedy()) {
      best.push_back(processor_.greedy_token(logits, options_.sampling));
    } else {
      processor_.process(logits, options_.sampling, &p[i]);
    }
    if (i < n) counts_.add(drafts.tokens[i]);
  }
  for (const int32_t token : drafts.tokens) counts_.remove(token);
  if (options_.sampling.greedy()) return verify_greedy(best, drafts.tokens);
  return verify(
      options_.draft.verify, {.p = p, .q = drafts.q, .drafts = drafts.tokens},
      DrawKey{seed_, static_cast<uint64_t>(session_.length()) - static_cast<uint64_t>(n)});
}

void Generator::speculative_step(const Drafts& drafts) {
  const Timer timer;
  const int64_t length = session_.length();
  const size_t n = drafts.tokens.size(), vocab = static_cast<size_t>(session_.impl().vocab());
  std::vector<int32_t> rows{*anchor_};
  rows.insert(rows.end(), drafts.tokens.begin(), drafts.tokens.end());
  const auto logits = session_.append(rows);
  const double us = timer.microseconds();
  stats_.step_us += us;
  step_times_.record(static_cast<int>(n) + 1, us);

  const VerifyResult result = verify_rows(logits, drafts);
  const auto accepted = static_cast<size_t>(result.accepted);
  stats_.verified += static_cast<int64_t>(n);
  stats_.accepted += result.accepted;
  for (size_t i = 0; i < n; ++i) ++stats_.verified_at[i];
  for (size_t i = 0; i < accepted; ++i) ++stats_.accepted_at[i];
  survival_.record(static_cast<int>(n), result.accepted);

  for (size_t i = 0; i <= accepted; ++i) {
    const int32_t token = i < accepted ? drafts.tokens[i] : result.bonus;
    emit(token, logits.subspan(i * vocab, vocab));
    counts_.add(token);
  }
  // Rows of rejected drafts leave no trace.
  session_.truncate(length + 1 + result.accepted);
  anchor_ = result.bonus;
}

}  // namespace peregrine
