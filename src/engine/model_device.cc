#include "engine/model_device.h"

#include <algorithm>
#include <cassert>

#include "peregrine/error.h"
#include "sampling/draft_length.h"

namespace peregrine {

ModelDevice::ModelDevice(std::shared_ptr<const Model> model, StateStore& state,
                         const ModelDeviceOptions& options)
    : model_(std::move(model)),
      state_(state),
      backend_(*model_->impl().backend),
      masked_(model_->impl().tokenizer.masked_ids(model_->vocab_size())),
      forward_(backend_, model_->impl().config(), model_->impl().weights,
               model_->impl().engram_hasher(), state, options.max_rows),
      processor_(model_->vocab_size()),
      sequences_(static_cast<size_t>(state.options().slots)) {
  if (options.drafts)
    drafter_.emplace(backend_, model_->impl().config(), model_->impl().weights, state,
                     state.options().slots * kMaxDrafts, state.options().slots);
  start();
}

ModelDevice::~ModelDevice() { stop(); }

void ModelDevice::run(StepState& state, const StepState* previous) {
  try {
    const std::lock_guard lock(model_->impl().device_mutex);
    state_.apply(state.plan.page_updates);
    for (const RowGroup& group : state.plan.groups) {
      if (group.setup) begin_stay(group);
      // The sequence's state is that of its last step; a remapped group's is the step just run.
      assert(group.remap < 0 ||
             previous->plan.groups[static_cast<size_t>(group.remap)].sequence == group.sequence);
    }
    (void)previous;
    choose_drafts(state.plan);
    build_step(state.plan);
    const double begin = now_us();
    if (step_.segments.empty()) {
      forward_.join_others();
    } else {
      forward_.run(step_, drafter_.has_value(), where_);
      state.output.rows = step_.rows();
      decide(state.plan, state.output);
      learn(state.plan, state.output, now_us() - begin);
    }
    if (drafter_) draft_next(state.plan, state.output);
    backend_.synchronize();
  } catch (const std::exception& error) {
    state.error = error.what();
    state.output.clear();
  }
}

void ModelDevice::begin_stay(const RowGroup& group) {
  const SequenceSetup& setup = *group.setup;
  SequenceSampler sampler(setup.sampling, setup.seed, masked_);
  const auto prompt = static_cast<size_t>(setup.prompt_length);
  sampler.add_prompt(std::span(setup.tokens).first(prompt));
  for (size_t i = prompt; i < setup.tokens.size(); ++i) sampler.add_output(setup.tokens[i]);
  if (setup.anchor) sampler.add_output(*setup.anchor);
  sequences_[static_cast<size_t>(group.slot)].emplace(Sequence{.setup = group.setup,
                                                               .sampler = std::move(sampler),
                                                               .tokens = setup.tokens,
                                                               .length = group.start,
                                                               .drafts = {},
                                                               .choice = {}});
}

// Cuts drafts to what their group may verify and, under load, to the batch's row budget. Sampling
// with a seed keeps its drafts, so that what it draws does not depend on who else runs; they count.
void ModelDevice::choose_drafts(const StepPlan& plan) {
  std::vector<Sequence*> sharing;
  std::vector<std::vector<double>> survival;
  size_t pinned = 0;
  for (const RowGroup& group : plan.groups) {
    if (group.kind != GroupKind::kDecode) continue;
    Sequence& s = at(group.slot);
    const auto most = static_cast<size_t>(group.max_rows - 1);
    if (s.drafts.tokens.size() > most) s.drafts.cut(most);
    if (plan.draft_row_budget == 0) continue;
    if (!s.setup->sampling.greedy() && s.setup->sampling.seed) {
      pinned += s.drafts.tokens.size();
      continue;
    }
    sharing.push_back(&s);
    survival.push_back(survival_from_scores(s.drafts.scores));
    survival.back().resize(s.drafts.tokens.size());
  }
  const auto budget = static_cast<size_t>(plan.draft_row_budget);
  const auto kept = share_draft_rows(survival, budget - std::min(budget, pinned));
  for (size_t i = 0; i < sharing.size(); ++i)
    if (kept[i] < sharing[i]->drafts.tokens.size()) sharing[i]->drafts.cut(kept[i]);
}

void ModelDevice::build_step(const StepPlan& plan) {
  step_.segments.clear();
  decoding_ = decode_rows_ = decode_tokens_ = drafting_ = 0;
  for (const RowGroup& group : plan.groups) {
    Sequence& s = at(group.slot);
    if (group.kind == GroupKind::kPrefill) {
      const bool sample = group.last && !s.setup->anchor;
      step_.segments.push_back({.slot = group.slot,
                                .start = group.start,
                                .count = group.count,
                                .tokens = s.tokens,
                                .window_floor = group.window_floor,
                                .write_floor = group.write_floor,
                                .decoder_start = group.decoder_start,
                                .decoder_window_floor = group.decoder_floor,
                                .logits = sample ? 1 : 0});
      continue;
    }
    s.tokens.resize(static_cast<size_t>(s.length));
    s.tokens.push_back(s.anchor);
    s.tokens.insert(s.tokens.end(), s.drafts.tokens.begin(), s.drafts.tokens.end());
    const int rows = 1 + static_cast<int>(s.drafts.tokens.size());
    ++decoding_;
    decode_rows_ += rows;
    if (!s.drafts.scores.empty()) ++drafting_;
    step_.segments.push_back({.slot = group.slot,
                              .start = s.length,
                              .count = rows,
                              .tokens = s.tokens,
                              .decoder_start = s.length,
                              .logits = rows});
  }
}

std::span<const float> ModelDevice::host_rows(Tensor rows, std::vector<float>& buffer) {
  buffer.resize(static_cast<size_t>(rows.rows * rows.cols));
  backend_.copy_out(buffer.data(), rows.data, buffer.size() * sizeof(float));
  return buffer;
}

void ModelDevice::decide(const StepPlan& plan, StepOutput& output) {
  output.groups.assign(plan.groups.size(), {});
  const auto vocab = static_cast<size_t>(model_->vocab_size());
  const auto logits = forward_.logits().rows > 0 ? host_rows(forward_.logits(), logits_buffer_)
                                                 : std::span<const float>{};
  const auto emit = [&](Sequence& s, GroupOutput& out, int32_t token, std::span<const float> row) {
    output.tokens.push_back(token);
    output.logprobs.emplace_back();
    if (s.setup->sampling.logprobs) {
      output.logprobs.back() = log_probabilities(row, token, *s.setup->sampling.logprobs);
      output.any_logprobs = true;
    }
    s.sampler.add_output(token);
    ++out.tokens;
  };
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const RowGroup& group = plan.groups[g];
    GroupOutput& out = output.groups[g];
    out.first_token = static_cast<int>(output.tokens.size());
    Sequence& s = at(group.slot);
    const auto row = [&](size_t i) {
      return logits.subspan((static_cast<size_t>(where_[g].logits_row) + i) * vocab, vocab);
    };
    if (group.kind == GroupKind::kPrefill) {
      s.length = group.start + group.count;
      if (!group.last) continue;
      if (s.setup->anchor) {
        s.anchor = *s.setup->anchor;
      } else {
        s.anchor = s.sampler.sample(processor_, row(0), s.length);
        emit(s, out, s.anchor, row(0));
      }
      continue;
    }
    const size_t n = s.drafts.tokens.size();
    VerifyResult result;
    if (n == 0) {
      result.bonus = s.sampler.sample(processor_, row(0), s.length + 1);
    } else {
      const auto rows =
          logits.subspan(static_cast<size_t>(where_[g].logits_row) * vocab, (n + 1) * vocab);
      result = s.sampler.verify(processor_, rows, s.drafts, s.length + 1, s.setup->draft.verify);
    }
    decode_tokens_ += 1 + result.accepted;
    out.verified = static_cast<int>(n);
    out.accepted = result.accepted;
    for (size_t i = 0; i < static_cast<size_t>(result.accepted); ++i)
      emit(s, out, s.drafts.tokens[i], row(i));
    emit(s, out, result.bonus, row(static_cast<size_t>(result.accepted)));
    s.length += 1 + result.accepted;
    s.anchor = result.bonus;
  }
}

// Bounded by what the request may still emit and by its context: known here only.
int ModelDevice::drafts_wanted(const Sequence& s) const {
  const SequenceSetup& setup = *s.setup;
  if (setup.draft.mode == DraftMode::kOff) return 0;
  const int64_t room = setup.context_tokens - s.length - 1;
  const int64_t wanted = setup.max_tokens - s.emitted() - 1;
  const int most =
      static_cast<int>(std::clamp<int64_t>(std::min(room, wanted), 0, setup.draft.drafts));
  if (setup.draft.mode == DraftMode::kFixed || most == 0) return most;
  if (ledger().step_times.empty()) return 0;
  return s.choice.worthwhile(ledger(), prices(setup.draft.drafts)) ? most : 0;
}

ModelDevice::Share ModelDevice::share() const {
  const DraftLedger& known = ledger();
  const double others = decoding_ == 0 ? 0 : (decoding_ - 1.0) / decoding_;
  Share share{.rows = 1 + others * decode_rows_};
  share.tokens_per_us =
      (1 + others * decode_tokens_) / known.step_times.estimate(static_cast<int>(share.rows));
  if (!known.pass_times.empty()) {
    const int sequences = std::max(1, drafting_);
    share.pass_us = known.pass_times.estimate(sequences) / sequences * known.step_times.estimate(1);
  }
  return share;
}

DraftPrices ModelDevice::prices(int drafts) const {
  const Share mine = share();
  return draft_prices(ledger().step_times, static_cast<int>(mine.rows), drafts, mine.tokens_per_us,
                      mine.pass_us * mine.tokens_per_us);
}

// What the step taught about times and about its drafts.
void ModelDevice::learn(const StepPlan& plan, const StepOutput& output, double step_us) {
  if (decoding_ == 0) return;
  StepTimes& times = ledger().step_times;
  // Prompt rows would count as the drafts' time.
  if (decoding_ == static_cast<int>(plan.groups.size())) times.record(decode_rows_, step_us);
  if (times.empty()) return;
  const Share mine = share();
  const int rows = static_cast<int>(mine.rows);
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    if (plan.groups[g].kind != GroupKind::kDecode) continue;
    Sequence& s = at(plan.groups[g].slot);
    if (s.setup->draft.mode != DraftMode::kAuto) continue;
    double cost = 1;
    if (!s.drafts.scores.empty()) {
      const int verified = output.groups[g].verified;
      const double rows_us = std::max(0.0, times.estimate(rows + verified) - times.estimate(rows));
      cost += (mine.pass_us + rows_us) * mine.tokens_per_us;
      s.choice.record({.expected = expected_drafts(s.drafts.scores, verified),
                       .accepted = output.groups[g].accepted,
                       .cost = cost},
                      ledger());
    }
    ledger().earn(cost);
  }
}

// One drafter pass for every sequence that will decode next.
void ModelDevice::draft_next(const StepPlan& plan, StepOutput& output) {
  draft_segments_.clear();
  draft_groups_.clear();
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const RowGroup& group = plan.groups[g];
    if (group.kind == GroupKind::kPrefill && !group.last) continue;
    Sequence& s = at(group.slot);
    s.drafts.clear();
    const int count = drafts_wanted(s);
    if (count == 0) continue;
    draft_segments_.push_back({group.slot, s.length, s.anchor, count});
    draft_groups_.push_back(static_cast<int>(g));
  }
  if (draft_segments_.empty()) return drafter_->join_others();

  const double begin = now_us();
  std::vector<DraftPrices> prices_of;  // for requests that choose by price
  for (const DraftSegment& segment : draft_segments_) {
    const DraftOptions& draft = at(segment.slot).setup->draft;
    prices_of.push_back(draft.mode == DraftMode::kAuto ? prices(draft.drafts) : DraftPrices{});
  }
  drafter_->begin(draft_segments_);
  std::vector<int> active(draft_segments_.size());
  for (size_t i = 0; i < active.size(); ++i) active[i] = static_cast<int>(i);
  std::vector<double> survival(draft_segments_.size(), 1);
  std::vector<int32_t> previous;
  const auto vocab = static_cast<size_t>(model_->vocab_size());
  for (int slot = 0; !active.empty(); ++slot) {
    previous.clear();
    for (const int i : active) {
      const Sequence& s = at(draft_segments_[static_cast<size_t>(i)].slot);
      previous.push_back(slot == 0 ? s.anchor : s.drafts.tokens.back());
    }
    drafter_->next(slot, active, previous);
    const auto scores = host_rows(drafter_->confidence(), score_buffer_);
    const auto logits = host_rows(drafter_->logits(), draft_buffer_);
    std::vector<int> still;
    for (size_t a = 0; a < active.size(); ++a) {
      const auto which = static_cast<size_t>(active[a]);
      const DraftSegment& segment = draft_segments_[which];
      Sequence& s = at(segment.slot);
      s.drafts.scores.push_back(scores[a]);
      survival[which] = extend_survival(survival[which], scores[a]);
      const double threshold = s.setup->draft.mode == DraftMode::kAuto
                                   ? s.choice.threshold(prices_of[which], slot)
                                   : slot_threshold(slot, segment.count, s.setup->draft.threshold);
      if (!(survival[which] >= threshold)) continue;
      s.sampler.draft(processor_, logits.subspan(a * vocab, vocab), s.length + 1, s.drafts);
      if (slot + 1 < segment.count) still.push_back(active[a]);
    }
    active = std::move(still);
  }
  for (size_t i = 0; i < draft_segments_.size(); ++i)
    output.groups[static_cast<size_t>(draft_groups_[i])].drafted =
        static_cast<int>(at(draft_segments_[i].slot).drafts.tokens.size());
  if (!ledger().step_times.empty())
    ledger().pass_times.record(static_cast<int>(draft_segments_.size()),
                               (now_us() - begin) / ledger().step_times.estimate(1));
}

}  // namespace peregrine
