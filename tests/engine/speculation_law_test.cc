// Sampling with drafts follows the model's own distribution: frequencies of the first tokens over
// many seeds, from the tiny model's real rows.
//
// What the model computes depends on tokens alone, so every row, and the distribution made of it,
// is computed once and remembered; drafting and verification, which draw, run again for each seed.
// The first seeds also run through SequenceSampler, which must decide the same.
#include <gtest/gtest.h>

#include "engine/tiny_generation.h"
#include "sampling/chi_square.h"
#include "sampling/draft_length.h"

namespace peregrine::test {
namespace {

constexpr int kDraftSlots = 2;
constexpr int kThroughSampler = 50;  // seeds
constexpr size_t kEmitted = 2;       // the joint law of the first two tokens

const SamplingParams kParams{.temperature = 1};

// Rows of the model and the drafter behind a prompt, by the tokens that follow it.
class RememberedModel {
 public:
  explicit RememberedModel(const Ids& prompt)
      : prompt_(prompt),
        session_(tiny_model(), {.context_tokens = 512, .draft_rows = kDraftSlots}) {
    session_.sync(prompt_);
  }

  int64_t prompt_tokens() const { return static_cast<int64_t>(prompt_.size()); }

  // What a plain step computes behind prompt + path.
  const Rows& plain(const Ids& path) {
    auto& row = plain_[path];
    if (!row.empty()) return row;
    Ids all = prompt_;
    all.insert(all.end(), path.begin(), path.end());
    move_to(path, all.size() - 1);
    row = copied(session_.step(all.back()));
    return row;
  }

  // Runs the step that verifies `drafts` behind prompt + sure, unless it has been.
  void verify_step(const Ids& sure, const Ids& drafts) {
    const auto vocab = static_cast<size_t>(tiny_model()->vocab_size());
    Ids path = sure;
    path.insert(path.end(), drafts.begin(), drafts.end());
    if (!verified_.contains(path)) {
      move_to(sure, prompt_.size() + sure.size() - 1);
      Ids step{last_of(sure)};
      step.insert(step.end(), drafts.begin(), drafts.end());
      const Rows rows = copied(session_.append(step));
      Ids key = sure;
      for (size_t i = 0; i <= drafts.size(); ++i) {
        verified_[key] = Rows(rows.begin() + static_cast<ptrdiff_t>(i * vocab),
                              rows.begin() + static_cast<ptrdiff_t>((i + 1) * vocab));
        if (i < drafts.size()) key.push_back(drafts[i]);
      }
    }
  }

  // Its rows [drafts + 1].
  Rows rows(const Ids& sure, const Ids& drafts) {
    Rows out;
    Ids key = sure;
    for (size_t i = 0; i <= drafts.size(); ++i) {
      const Rows& row = verified_.at(key);
      out.insert(out.end(), row.begin(), row.end());
      if (i < drafts.size()) key.push_back(drafts[i]);
    }
    return out;
  }

  // The distribution of the token behind prompt + path, from verification rows.
  const Distribution& p(const Ids& path) {
    auto& found = p_[path];
    if (found.empty()) processor_.process({.logits = verified_.at(path)}, kParams, &found);
    return found;
  }

  struct DraftRow {
    Rows logits;
    Distribution q;
    float score = 0;
  };
  // Slot `i` of the block behind prompt + sure, with the token before the slot.
  const DraftRow& draft(const Ids& sure, int i, int32_t previous) {
    auto& row = drafts_[{sure, i, previous}];
    if (!row.logits.empty()) return row;
    move_to(sure, prompt_.size() + sure.size() - 1);
    Session::Impl& s = session_.impl();
    const DraftSegment segment{s.slot, session_.length(), last_of(sure), kDraftSlots};
    s.drafter->begin(std::span(&segment, 1));
    const int active[] = {0};
    s.drafter->next(i, active, std::span(&previous, 1));
    row.logits.resize(static_cast<size_t>(s.vocab()));
    s.backend().copy_out(row.logits.data(), s.drafter->logits().data,
                         row.logits.size() * sizeof(float));
    processor_.process({.logits = row.logits}, kParams, &row.q);
    s.backend().copy_out(&row.score, s.drafter->confidence().data, sizeof(float));
    return row;
  }

  int32_t last_of(const Ids& sure) const { return sure.empty() ? prompt_.back() : sure.back(); }

 private:
  // State of the first `length` tokens of prompt + path.
  void move_to(const Ids& path, size_t length) {
    Ids all = prompt_;
    all.insert(all.end(), path.begin(), path.end());
    all.resize(length);
    const auto same =
        std::mismatch(all.begin(), all.end(), session_.tokens().begin(), session_.tokens().end());
    session_.truncate(same.first - all.begin());
    for (auto token = same.first; token != all.end(); ++token) session_.step(*token);
  }

  Ids prompt_;
  Session session_;
  LogitProcessor processor_{tiny_model()->vocab_size()};
  std::map<Ids, Rows> plain_, verified_;
  std::map<Ids, Distribution> p_;
  std::map<std::tuple<Ids, int, int32_t>, DraftRow> drafts_;
};

enum class Verifier { kBlock, kRejection, kBroken };

// A rejected draft followed by a token of the model's distribution instead of the residual one:
// plausible text, wrong law.
VerifyResult verify_wrongly(const DraftBlock& block, const DrawKey& key) {
  size_t i = 0;
  while (i < block.drafts.size()) {
    const int32_t x = block.drafts[i];
    if (draw_uniform(key, Purpose::kVerify, static_cast<uint32_t>(i)) >=
        carried_weight(1, block.p[i].at(x), block.q[i].at(x)))
      break;
    ++i;
  }
  return {.accepted = static_cast<int>(i), .bonus = draw(block.p[i], key, Purpose::kBonus)};
}

VerifyMethod method_of(Verifier verifier) {
  return verifier == Verifier::kBlock ? VerifyMethod::kBlock : VerifyMethod::kRejection;
}

// The real sampler on the same rows draws the same drafts and reaches the same verdict.
void expect_sampler_agrees(RememberedModel& model, const Ids& sure, const Drafts& drafts,
                           VerifyResult result, Verifier verifier, const DrawKey& key) {
  LogitProcessor processor(tiny_model()->vocab_size());
  SequenceSampler sampler(kParams, key.seed, {});
  const auto position = static_cast<int64_t>(key.position);
  Drafts again;
  int32_t previous = model.last_of(sure);
  for (size_t i = 0; i < drafts.tokens.size(); ++i) {
    sampler.draft(processor, model.draft(sure, static_cast<int>(i), previous).logits, position,
                  again);
    previous = again.tokens.back();
  }
  ASSERT_EQ(again.tokens, drafts.tokens);
  const Rows rows = model.rows(sure, again.tokens);
  const VerifyResult verdict =
      sampler.verify(processor, rows, again, position, method_of(verifier));
  EXPECT_EQ(verdict.accepted, result.accepted);
  EXPECT_EQ(verdict.bonus, result.bonus);
}

struct Counted {
  std::map<Ids, int64_t> texts;     // of kEmitted tokens
  int64_t accepted = 0, steps = 0;  // of the first steps
};

// One step of a generator over remembered rows: appends the tokens it makes sure.
void step(RememberedModel& model, Verifier verifier, double threshold, uint64_t seed, Ids& sure,
          Counted& counted) {
  const DrawKey key{seed, static_cast<uint64_t>(model.prompt_tokens()) + sure.size()};
  Drafts drafts;
  int32_t previous = model.last_of(sure);
  for (int i = 0; i < kDraftSlots; ++i) {
    const auto& slot = model.draft(sure, i, previous);
    drafts.scores.push_back(slot.score);
    if (survival_from_scores(drafts.scores).back() < slot_threshold(i, kDraftSlots, threshold))
      break;
    drafts.q.push_back(slot.q);
    previous = draw(slot.q, key, Purpose::kDraft, static_cast<uint32_t>(i));
    drafts.tokens.push_back(previous);
  }
  model.verify_step(sure, drafts.tokens);
  if (drafts.tokens.empty()) {
    sure.push_back(draw(model.p(sure), key, Purpose::kSample));
    return;
  }
  std::vector<Distribution> p;
  Ids path = sure;
  for (size_t i = 0; i <= drafts.tokens.size(); ++i) {
    p.push_back(model.p(path));
    if (i < drafts.tokens.size()) path.push_back(drafts.tokens[i]);
  }
  const DraftBlock block{.p = p, .q = drafts.q, .drafts = drafts.tokens};
  const VerifyResult result = verifier == Verifier::kBroken
                                  ? verify_wrongly(block, key)
                                  : verify(method_of(verifier), block, key);
  if (verifier != Verifier::kBroken && seed < kThroughSampler)
    expect_sampler_agrees(model, sure, drafts, result, verifier, key);
  if (sure.empty()) {
    counted.accepted += result.accepted;
    ++counted.steps;
  }
  sure.insert(sure.end(), drafts.tokens.begin(), drafts.tokens.begin() + result.accepted);
  sure.push_back(result.bonus);
}

Counted run(RememberedModel& model, Verifier verifier, double threshold, int trials) {
  Counted counted;
  for (int trial = 0; trial < trials; ++trial) {
    Ids sure;
    while (sure.size() < kEmitted)
      step(model, verifier, threshold, static_cast<uint64_t>(trial), sure, counted);
    sure.resize(kEmitted);
    ++counted.texts[sure];
  }
  return counted;
}

// Against the law of plain decoding: texts expected five times or more each have a cell, the rest
// share one. Fewer draws than 20,000 have less power, so under sanitizers only the true verifiers
// are judged.
ChiSquare against_plain(RememberedModel& model, const Counted& counted, int trials) {
  LogitProcessor processor(tiny_model()->vocab_size());
  const double least = 5.0 / trials;
  const auto law = [&](const Ids& path) {
    Distribution next;
    processor.process({.logits = model.plain(path)}, kParams, &next);
    return next;
  };
  std::vector<int64_t> counts{trials};
  std::vector<double> expected{1.0};
  const Distribution one = law({});
  for (size_t i = 0; i < one.size(); ++i) {
    if (one.probabilities[i] < least) continue;
    const Distribution two = law({one.ids[i]});
    for (size_t j = 0; j < two.size(); ++j) {
      const double probability = one.probabilities[i] * two.probabilities[j];
      if (probability < least) continue;
      const auto found = counted.texts.find({one.ids[i], two.ids[j]});
      counts.push_back(found == counted.texts.end() ? 0 : found->second);
      expected.push_back(probability);
      counts[0] -= counts.back();
      expected[0] -= probability;
    }
  }
  return chi_square(counts, expected);
}

struct LawCase {
  const char* name;
  size_t text;       // of expected.jsonl
  size_t continued;  // tokens of its continuation that belong to the prompt here
  double threshold;
};

void PrintTo(const LawCase& c, std::ostream* out) { *out << c.name; }

class SpeculationLaw : public ::testing::TestWithParam<LawCase> {};

TEST_P(SpeculationLaw, FirstTokensHaveTheModelsDistribution) {
  const LawCase& c = GetParam();
  const Expected& text = expected_texts()[c.text];
  Ids prompt = text.prompt;
  prompt.insert(prompt.end(), text.continuation.begin(),
                text.continuation.begin() + static_cast<ptrdiff_t>(c.continued));
  RememberedModel model(prompt);
  const int trials = reduced(20000, 20);
  const Counted block = run(model, Verifier::kBlock, c.threshold, trials);
  const ChiSquare block_result = against_plain(model, block, trials);
  EXPECT_LT(block_result.statistic, block_result.critical);
  const Counted rejection = run(model, Verifier::kRejection, c.threshold, trials);
  const ChiSquare rejection_result = against_plain(model, rejection, trials);
  EXPECT_LT(rejection_result.statistic, rejection_result.critical);
  // The same test sees a verifier that is only slightly wrong.
  if (!kSanitized) {
    const Counted broken = run(model, Verifier::kBroken, c.threshold, trials);
    const ChiSquare broken_result = against_plain(model, broken, trials);
    EXPECT_GT(broken_result.statistic, broken_result.critical);
  }

  // Block verification's expected length is never below token-wise.
  ASSERT_GT(block.steps, 0);
  EXPECT_GE(static_cast<double>(block.accepted + block.steps) / static_cast<double>(block.steps),
            0.98 * static_cast<double>(rejection.accepted + rejection.steps) /
                static_cast<double>(rejection.steps));
}

INSTANTIATE_TEST_SUITE_P(Prompts, SpeculationLaw,
                         ::testing::Values(LawCase{"story", 1, 0, 0.3},
                                           LawCase{"story_within", 1, 1, 0.0},
                                           LawCase{"thinking", 2, 0, 0.0},
                                           LawCase{"thinking_within", 2, 16, 0.0},
                                           LawCase{"definition", 7, 0, 0.0}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace peregrine::test
