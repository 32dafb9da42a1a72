// The backbone against recordings of the official code: tests/data/backbone_fp32 and engram
// (f32 throughout, so logits are sharp) on every backend.
#include <gtest/gtest.h>

#include "support/fixtures.h"
#include "support/model_fixture.h"

namespace peregrine::test {
namespace {

// The fixtures' READMEs: 1e-4 on logits; no cache element of these recordings sits on a rounding
// boundary that f32 summation order reaches.
constexpr double kTolerance = 1e-4;

struct Case {
  std::string backend;
  std::string fixture;
  std::string name;
  int prompt;
};

class Backbone : public ::testing::TestWithParam<Case> {
 protected:
  Backbone()
      : expected_(data_path(GetParam().fixture + "/expected.safetensors")),
        tokens_(expected_.ints(GetParam().name + ".tokens")) {
    ModelUnderTest::Options options;
    options.max_rows = 128;
    if (expected_.has("map.token_map")) options.token_map = expected_.ints("map.token_map");
    model_.emplace(data_path(GetParam().fixture), GetParam().backend, options);
  }
  const ModelConfig& config() const { return model_->checkpoint.config; }
  std::vector<float> expect(const std::string& name) const {
    return expected_.floats(GetParam().name + "." + name);
  }
  std::vector<float> expect_fixed(const std::string& name) const {
    return expected_.floats("fixed." + GetParam().name + "." + name);
  }
  bool has(const std::string& name) const { return expected_.has(GetParam().name + "." + name); }

  Fixture expected_;
  std::vector<int32_t> tokens_;
  std::optional<ModelUnderTest> model_;
};

TEST_P(Backbone, PrefillLogitsAndStreams) {
  const int prompt = GetParam().prompt;
  int layers_seen = 0;
  model_->forward->hooks.after_layer = [&](int layer, Tensor x, Tensor pre) {
    const std::string suffix = std::to_string(layer);
    if (!has("prefill.hidden." + suffix)) return;
    ++layers_seen;
    EXPECT_LT(max_difference(model_->copy(x), expect("prefill.hidden." + suffix)), kTolerance)
        << "stream after layer " << layer;
    if (has("prefill.pre_mix." + suffix)) {
      EXPECT_LT(max_difference(model_->copy(pre), expect("prefill.pre_mix." + suffix)), kTolerance)
          << "collapse weights after layer " << layer;
    }
  };
  const auto logits = model_->run(0, tokens_, 0, prompt);
  EXPECT_LT(max_difference(logits, expect("prefill.logits")), kTolerance);
  EXPECT_GT(layers_seen, 0);
}

TEST_P(Backbone, PrefillSelections) {
  const int prompt = GetParam().prompt;
  int seen = 0;
  model_->forward->hooks.after_selection = [&](int layer, Selection selected, Selection) {
    const auto want = expected_.ints(GetParam().name + ".prefill.topk." + std::to_string(layer));
    const int width = static_cast<int>(want.size()) / prompt;
    for (int row = 0; row < prompt; ++row) {
      std::vector<int32_t> expected_rows, got;
      for (int i = 0; i < width; ++i)
        if (want[static_cast<size_t>(row * width + i)] >= 0)
          expected_rows.push_back(want[static_cast<size_t>(row * width + i)]);
      got.assign(selected.rows + row * selected.capacity,
                 selected.rows + row * selected.capacity + selected.count[row]);
      EXPECT_EQ(got, expected_rows) << "layer " << layer << " row " << row;
    }
    ++seen;
  };
  model_->run(0, tokens_, 0, prompt);
  EXPECT_EQ(seen, static_cast<int>(config().index_source_layers.size()));
}

TEST_P(Backbone, DecodeLogits) {
  const int prompt = GetParam().prompt;
  model_->run(0, tokens_, 0, prompt);
  const auto want = expect_fixed("decode.logits");
  const size_t vocab = static_cast<size_t>(config().vocab_size);
  const size_t steps = want.size() / vocab;
  ASSERT_EQ(static_cast<size_t>(prompt) + steps, tokens_.size());
  for (size_t step = 0; step < steps; ++step) {
    const int64_t pos = prompt + static_cast<int64_t>(step);
    const auto logits = model_->run(0, tokens_, pos, pos + 1);
    const auto begin = want.begin() + static_cast<int64_t>(step * vocab);
    EXPECT_LT(max_difference(logits, {begin, begin + static_cast<int64_t>(vocab)}), kTolerance)
        << "decode step " << step;
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string& backend : backends()) {
    all.push_back({backend, "backbone_fp32", "long", 41});
    all.push_back({backend, "backbone_fp32", "short", 3});
    all.push_back({backend, "engram", "long", 29});
    all.push_back({backend, "engram", "short", 3});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Backbone, ::testing::ValuesIn(cases()), [](const auto& info) {
  return info.param.backend + "_" + info.param.fixture + "_" + info.param.name;
});

}  // namespace
}  // namespace peregrine::test
