// Taps, rings and drafts against tests/data/dspark (f32 throughout, so values are sharp).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/drafter.h"
#include "support/fixtures.h"
#include "support/model_fixture.h"
#include "support/state_reader.h"

namespace peregrine::test {
namespace {

// The README's tolerance. No cache element of these recordings sits on a boundary that the order of
// f32 sums reaches, so the wider one for a flipped element is not used.
constexpr double kTolerance = 1e-4;

struct Case {
  std::string backend;
  std::string name;     // of the recordings
  std::string prefill;  // of the prompt's recordings
  int prompt;
  int steps;  // compared
  bool sampled = false;
};

class Dspark : public ::testing::TestWithParam<Case> {
 protected:
  Dspark()
      : expected_(data_path("dspark/expected.safetensors")),
        model_(data_path("dspark"), GetParam().backend),
        drafter_(*model_.backend, config(), *model_.weights, *model_.state,
                 config().dspark_block_size, 1) {
    const std::string own = GetParam().name + ".tokens";
    tokens_ = expected_.ints(expected_.has(own) ? own : GetParam().prefill + ".tokens");
  }
  const ModelConfig& config() const { return model_.checkpoint.config; }
  size_t vocab() const { return static_cast<size_t>(config().vocab_size); }
  bool has(const std::string& name) const { return expected_.has(GetParam().name + "." + name); }
  // Entry `index` of the first dimension.
  std::vector<float> step_values(const std::string& name, size_t index) const {
    const std::string full = GetParam().name + "." + name;
    const auto all = expected_.floats(full);
    const size_t n = all.size() / static_cast<size_t>(expected_.view(full).shape[0]);
    return {all.begin() + static_cast<int64_t>(index * n),
            all.begin() + static_cast<int64_t>((index + 1) * n)};
  }
  // As the reference samples: argmax of softmax(logits) / e, or of the logits.
  int choose(const float* logits, const float* noise) const {
    if (noise == nullptr) return argmax(logits, config().vocab_size);
    const float maximum = *std::max_element(logits, logits + vocab());
    double sum = 0;
    for (size_t i = 0; i < vocab(); ++i) sum += std::exp(static_cast<double>(logits[i]) - maximum);
    std::vector<float> race(vocab());
    for (size_t i = 0; i < vocab(); ++i)
      race[i] = static_cast<float>(std::exp(static_cast<double>(logits[i]) - maximum) / sum /
                                   static_cast<double>(noise[i]));
    return argmax(race.data(), config().vocab_size);
  }
  void expect_rings(const std::string& when, int64_t tokens) const {
    const StateReader read(config(), model_.state->view());
    for (int stage = 0; stage < config().n_mtp_layers; ++stage) {
      const std::string name = when + ".mtp_window_kv." + std::to_string(stage);
      if (!has(name)) continue;
      EXPECT_EQ(read.ring(0, config().n_layers + stage, tokens),
                expected_.floats(GetParam().name + "." + name))
          << name;
    }
  }
  void draft(size_t step, int64_t position, int32_t anchor);

  Fixture expected_;
  ModelUnderTest model_;
  Drafter drafter_;
  std::vector<int32_t> tokens_;
};

// One block after `anchor` at `position`, against step `step` of the recording.
void Dspark::draft(size_t step, int64_t position, int32_t anchor) {
  const int block = config().dspark_block_size;
  const bool streams =
      has("step.draft_hidden") &&
      static_cast<int64_t>(step) < expected_.view(GetParam().name + ".step.draft_hidden").shape[0];
  drafter_.after_stage = [&](int stage, Tensor x) {
    if (!streams) return;
    const auto all = step_values("step.draft_hidden", step);
    const auto got = model_.copy(x);
    const auto from = all.begin() + static_cast<int64_t>(got.size()) * stage;
    EXPECT_LT(max_difference(got, {from, from + static_cast<int64_t>(got.size())}), kTolerance)
        << "step " << step << " stage " << stage;
  };
  const DraftSegment segment{.slot = 0, .position = position, .anchor = anchor, .count = block};
  drafter_.begin({&segment, 1});

  const auto logits = step_values("step.draft_logits", step);
  const auto confidence = step_values("step.confidence", step);
  const auto tokens = step_values("step.draft_tokens", step);
  const auto noise = GetParam().sampled ? step_values("noise.draft", step) : std::vector<float>();
  int32_t previous = anchor;
  for (int i = 0; i < block; ++i) {
    const int active = 0;
    drafter_.next(i, {&active, 1}, {&previous, 1});
    const auto got = model_.copy(drafter_.logits());
    const auto from = logits.begin() + static_cast<int64_t>(vocab()) * i;
    EXPECT_LT(max_difference(got, {from, from + config().vocab_size}), kTolerance)
        << "step " << step << " slot " << i;
    EXPECT_NEAR(model_.copy(drafter_.confidence())[0], confidence[static_cast<size_t>(i)],
                kTolerance)
        << "step " << step << " slot " << i;
    previous = choose(got.data(), noise.empty() ? nullptr : noise.data() + vocab() * i);
    EXPECT_EQ(previous, static_cast<int32_t>(tokens[static_cast<size_t>(i) + 1]))
        << "step " << step << " slot " << i;
  }
}

TEST_P(Dspark, TapsRingsAndDrafts) {
  const int prompt = GetParam().prompt;
  const auto logits = model_.run(0, tokens_, 0, prompt);
  const std::vector<float> last(logits.end() - config().vocab_size, logits.end());
  const auto expect = [&](const std::string& name) {
    return expected_.floats(GetParam().prefill + "." + name);
  };
  EXPECT_LT(max_difference(last, expect("prefill.logits_last")), kTolerance);
  EXPECT_LT(max_difference(model_.copy(model_.forward->taps()), expect("prefill.main_hidden")),
            kTolerance);
  const auto noise = GetParam().sampled ? expected_.floats(GetParam().name + ".noise.prefill_main")
                                        : std::vector<float>();
  const std::string token =
      (has("prefill.token") ? GetParam().name : GetParam().prefill) + ".prefill.token";
  EXPECT_EQ(choose(last.data(), noise.empty() ? nullptr : noise.data()), expected_.ints(token)[0]);
  expect_rings("prefill", prompt);

  const auto main_token = expected_.ints(GetParam().name + ".step.main_token");
  ASSERT_GE(main_token.size(), static_cast<size_t>(GetParam().steps));
  for (int step = 0; step < GetParam().steps; ++step) {
    const auto index = static_cast<size_t>(step);
    const int64_t pos = prompt + step;
    const auto row = model_.run(0, tokens_, pos, pos + 1);
    if (has("step.main_logits")) {
      EXPECT_LT(max_difference(row, step_values("step.main_logits", index)), kTolerance);
      EXPECT_LT(max_difference(model_.copy(model_.forward->taps()),
                               step_values("step.main_hidden", index)),
                kTolerance);
    }
    const auto main_noise =
        GetParam().sampled ? step_values("noise.main", index) : std::vector<float>();
    const int anchor = choose(row.data(), main_noise.empty() ? nullptr : main_noise.data());
    EXPECT_EQ(anchor, main_token[index]);
    draft(index, pos + 1, anchor);
  }
  expect_rings("final", prompt + GetParam().steps);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string& backend : backends()) {
    all.push_back({backend, "t0_short", "t0_short", 3, 14});
    all.push_back({backend, "fixed.t0_long", "t0_long", 21, 12});
    all.push_back({backend, "fixed.t1_long", "t0_long", 21, 12, true});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Dspark, ::testing::ValuesIn(cases()), [](const auto& info) {
  std::string name = info.param.backend + "_" + info.param.name;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

}  // namespace
}  // namespace peregrine::test
