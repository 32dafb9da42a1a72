#include "engine/generator.h"

#include <algorithm>
#include <cassert>
#include <chrono>

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

}  // namespace

Generator::Generator(Session& session, const GenerateOptions& options)
    : session_(session),
      prompt_length_(session.length()),
      options_(options),
      processor_(session.impl().vocab()),
      sampler_(options.sampling, options.sampling.seed ? *options.sampling.seed : random_seed(),
               options_.masked_ids) {
  validate(options.sampling, session.impl().vocab());
  if (options.max_tokens < 1)
    fail(ErrorKind::kInvalidArgument, "max tokens {}: expected at least 1", options.max_tokens);
  DraftOptions& draft = options_.draft;
  if (draft.mode != DraftMode::kOff) {
    if (draft.drafts < 1 || draft.drafts > kMaxDrafts)
      fail(ErrorKind::kInvalidArgument, "draft block of {}: expected 1 to {}", draft.drafts,
           kMaxDrafts);
    if (!(draft.threshold >= 0 && draft.threshold <= 1))
      fail(ErrorKind::kInvalidArgument, "draft threshold {}: expected 0 to 1", draft.threshold);
    if (!session.impl().drafter)
      draft.mode = DraftMode::kOff;
    else
      draft.drafts = std::min(draft.drafts, session.impl().options.draft_rows);
  }
  if (session.logits().empty())
    fail(ErrorKind::kInvalidArgument,
         "generation needs a synchronised prompt: the session has no logits");
  sampler_.add_prompt(session.tokens());
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
  else if (stats_.tokens >= options_.max_tokens ||
           prompt_length_ + stats_.tokens >= session_.impl().options.context_tokens)
    finish_ = GenerateEnd::kLength;
}

std::span<const int32_t> Generator::next() {
  emitted_.clear();
  logprobs_.clear();
  if (finish_ != GenerateEnd::kRunning) return {};
  if (!anchor_) {
    // The prompt's own logits decide the first token.
    const auto logits = session_.logits();
    const int32_t token = sampler_.sample(processor_, logits, session_.length());
    emit(token, logits);
    sampler_.add_output(token);
    anchor_ = token;
    return emitted_;
  }
  const int planned = planned_drafts();
  drafts_.clear();
  if (planned > 0) draft(planned);
  if (drafts_.tokens.empty()) {
    plain_step();
  } else {
    speculative_step();
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

  // Measure first: a plain step, then a block.
  const std::lock_guard lock(session_.impl().model->impl().device_mutex);
  const DraftLedger& ledger = session_.impl().model->impl().draft_ledger;
  if (ledger.step_times.empty()) return 0;
  return choice_.worthwhile(ledger, prices()) ? most : 0;
}

// The machine makes one token in the time of a plain step. With device_mutex.
DraftPrices Generator::prices() const {
  const DraftLedger& ledger = session_.impl().model->impl().draft_ledger;
  return draft_prices(ledger.step_times, 1, options_.draft.drafts,
                      1 / ledger.step_times.estimate(1),
                      ledger.pass_times.empty() ? 0 : ledger.pass_times.estimate(1));
}

void Generator::draft(int count) {
  const Timer timer;
  Session::Impl& s = session_.impl();
  const std::lock_guard lock(s.model->impl().device_mutex);
  Drafter& drafter = *s.drafter;
  const DraftSegment segment{s.slot, session_.length(), *anchor_, count};
  drafter.begin(std::span(&segment, 1));

  const bool automatic = options_.draft.mode == DraftMode::kAuto;
  const DraftPrices now = automatic ? prices() : DraftPrices{};
  std::vector<float> logits(static_cast<size_t>(s.vocab()));
  int32_t previous = *anchor_;
  double survival = 1;
  const int first[] = {0};
  for (int i = 0; i < count; ++i) {
    drafter.next(i, first, std::span(&previous, 1));
    float score;
    s.backend().copy_out(&score, drafter.confidence().data, sizeof(score));
    drafts_.scores.push_back(score);
    survival = extend_survival(survival, score);
    const double threshold =
        automatic ? choice_.threshold(now, i) : slot_threshold(i, count, options_.draft.threshold);
    if (!(survival >= threshold)) break;
    s.backend().copy_out(logits.data(), drafter.logits().data, logits.size() * sizeof(float));
    sampler_.draft(processor_, logits, session_.length() + 1, drafts_);
    previous = drafts_.tokens.back();
  }
  stats_.drafted += static_cast<int64_t>(drafts_.tokens.size());
  const double us = timer.microseconds();
  stats_.draft_us += us;
  draft_us_ = us;
  DraftLedger& ledger = s.model->impl().draft_ledger;
  if (!ledger.step_times.empty()) ledger.pass_times.record(1, us / ledger.step_times.estimate(1));
}

// What a step taught, `drafts_` being what it verified.
void Generator::record_step(int accepted, double us) {
  const std::lock_guard lock(session_.impl().model->impl().device_mutex);
  DraftLedger& ledger = session_.impl().model->impl().draft_ledger;
  const int verified = static_cast<int>(drafts_.tokens.size());
  ledger.step_times.record(1 + verified, us);
  if (options_.draft.mode != DraftMode::kAuto) return;
  double cost = ledger.step_times.estimate(1 + verified) / ledger.step_times.estimate(1);
  if (!drafts_.scores.empty()) {
    // Its own time: sampled drafts take longer than greedy ones.
    cost += std::min(draft_us_ / ledger.step_times.estimate(1), 2 * ledger.pass_times.estimate(1));
    choice_.record(
        {.expected = expected_drafts(drafts_.scores, verified), .accepted = accepted, .cost = cost},
        ledger);
  }
  ledger.earn(cost);
}

void Generator::plain_step() {
  const Timer timer;
  const int64_t position = session_.length() + 1;
  const auto logits = session_.step(*anchor_);
  const double us = timer.microseconds();
  stats_.step_us += us;
  record_step(0, us);
  const int32_t token = sampler_.sample(processor_, logits, position);
  emit(token, logits);
  sampler_.add_output(token);
  anchor_ = token;
}

void Generator::speculative_step() {
  const Timer timer;
  const int64_t length = session_.length();
  const size_t n = drafts_.tokens.size(), vocab = static_cast<size_t>(session_.impl().vocab());
  std::vector<int32_t> rows{*anchor_};
  rows.insert(rows.end(), drafts_.tokens.begin(), drafts_.tokens.end());
  const auto logits = session_.append(rows);
  const double us = timer.microseconds();
  stats_.step_us += us;

  const VerifyResult result =
      sampler_.verify(processor_, logits, drafts_, length + 1, options_.draft.verify);
  const auto accepted = static_cast<size_t>(result.accepted);
  stats_.verified += static_cast<int64_t>(n);
  stats_.accepted += result.accepted;
  for (size_t i = 0; i < n; ++i) ++stats_.verified_at[i];
  for (size_t i = 0; i < accepted; ++i) ++stats_.accepted_at[i];
  record_step(result.accepted, us);

  for (size_t i = 0; i <= accepted; ++i) {
    const int32_t token = i < accepted ? drafts_.tokens[i] : result.bonus;
    emit(token, logits.subspan(i * vocab, vocab));
    sampler_.add_output(token);
  }
  // Rows of rejected drafts leave no trace, nor do drafts behind the end of the output.
  session_.truncate(length + static_cast<int64_t>(emitted_.size()));
  anchor_ = result.bonus;
}

}  // namespace peregrine
