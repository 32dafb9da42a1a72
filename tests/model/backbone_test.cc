// The backbone against recordings of the official code: tests/data/backbone_fp32 and engram
// (f32 throughout, so logits are sharp) on every backend.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "support/fixtures.h"
#include "support/model_fixture.h"
#include "support/state_reader.h"

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

// Selected rows and candidate blocks of `rows` step rows, against recorded rows from `first_row`
// on. Recorded selections are padded with -1; candidates are recorded as a mask over rows.
void expect_selection(const Fixture& expected, const std::string& prefix, int layer,
                      const ModelConfig& config, const IndexArgs& args, int rows, int first_row) {
  const std::string name = prefix + "topk." + std::to_string(layer);
  const auto want = expected.ints(name);
  const auto width = static_cast<size_t>(expected.view(name).shape[1]);
  for (int row = 0; row < rows; ++row) {
    const auto from = want.begin() + static_cast<int64_t>(width) * (first_row + row);
    const std::vector<int32_t> recorded(from,
                                        std::find(from, from + static_cast<int64_t>(width), -1));
    EXPECT_EQ(list_of(args.selected, row), recorded) << name << " row " << first_row + row;
  }
  if (layer != config.candidate_source_layer) return;
  const auto mask = expected.bytes(prefix + "candidates");
  const auto columns = static_cast<size_t>(expected.view(prefix + "candidates").shape[1]);
  for (int row = 0; row < rows; ++row) {
    std::vector<int32_t> recorded;
    for (size_t j = 0; j < columns; j += static_cast<size_t>(config.candidate_block_size))
      if (mask[static_cast<size_t>(first_row + row) * columns + j])
        recorded.push_back(static_cast<int32_t>(j) / config.candidate_block_size);
    EXPECT_EQ(list_of(args.candidates, row), recorded)
        << prefix << "candidates row " << first_row + row;
  }
}

TEST_P(Backbone, PrefillSelections) {
  const int prompt = GetParam().prompt;
  int seen = 0;
  model_->forward->hooks.after_selection = [&](int layer, const IndexArgs& args) {
    expect_selection(expected_, GetParam().name + ".prefill.", layer, config(), args, prompt, 0);
    ++seen;
  };
  model_->run(0, tokens_, 0, prompt);
  EXPECT_EQ(seen, static_cast<int>(config().index_source_layers.size()));
}

TEST_P(Backbone, DecodeSelections) {
  const int prompt = GetParam().prompt;
  model_->run(0, tokens_, 0, prompt);
  int step = 0, seen = 0;
  model_->forward->hooks.after_selection = [&](int layer, const IndexArgs& args) {
    expect_selection(expected_, "fixed." + GetParam().name + ".decode.", layer, config(), args, 1,
                     step);
    ++seen;
  };
  for (int64_t pos = prompt; pos < static_cast<int64_t>(tokens_.size()); ++pos, ++step)
    model_->run(0, tokens_, pos, pos + 1);
  EXPECT_EQ(seen, step * static_cast<int>(config().index_source_layers.size()));
}

// Unlike the lists made from them, scores show an error that changes no order.
TEST_P(Backbone, PrefillIndexScores) {
  const int prompt = GetParam().prompt;
  if (!has("prefill.index_score." + std::to_string(config().index_source_layers[0])))
    GTEST_SKIP() << "not recorded for this case";
  model_->forward->hooks.after_selection = [&](int layer, const IndexArgs& args) {
    const std::string name = "prefill.index_score." + std::to_string(layer);
    const int64_t columns = expected_.view(GetParam().name + "." + name).shape[1];
    std::vector<float> scores;
    for (int row = 0; row < prompt; ++row) {
      auto line = index_scores(args, model_->state->view(), model_->backend->numerics(),
                               config().index_head_dim, row, 0, row, columns);
      if (args.mode == IndexMode::kReindex) {
        const auto blocks = list_of(args.candidates, row);
        for (int32_t j = 0; j < columns; ++j)
          if (!std::count(blocks.begin(), blocks.end(), j / config().candidate_block_size))
            line[static_cast<size_t>(j)] = -std::numeric_limits<float>::infinity();
      }
      scores.insert(scores.end(), line.begin(), line.end());
    }
    EXPECT_LT(max_difference(scores, expect(name)), kTolerance) << name;
  };
  model_->run(0, tokens_, 0, prompt);
}

// Rings and global rows are quantised, so they are equal or wrong; the unfinished group is f32.
TEST_P(Backbone, CachesAfterDecoding) {
  const auto recorded = [&](const std::string& kind, int layer) {
    return "fixed." + GetParam().name + ".final." + kind + "." + std::to_string(layer);
  };
  if (!expected_.has(recorded("window_kv", 0))) GTEST_SKIP() << "not recorded for this case";
  const int prompt = GetParam().prompt;
  const auto length = static_cast<int64_t>(tokens_.size());
  model_->run(0, tokens_, 0, prompt);
  for (int64_t pos = prompt; pos < length; ++pos) model_->run(0, tokens_, pos, pos + 1);

  const StateReader read(config(), model_->state->view());
  for (int layer = 0; layer < config().n_layers; ++layer)
    EXPECT_EQ(read.ring(0, layer, length), expected_.floats(recorded("window_kv", layer)))
        << "ring of layer " << layer;
  for (int source = 0; source < model_->state->sources(); ++source) {
    const int layer = config().kv_source_layers[static_cast<size_t>(source)];
    const int64_t rows = model_->state->rows_of(source, length);
    EXPECT_EQ(read.compressed(0, source, rows), expected_.floats(recorded("compress_kv", layer)))
        << "compressed rows of layer " << layer;
    EXPECT_EQ(read.index_keys(0, source, rows), expected_.floats(recorded("index_k", layer)))
        << "index keys of layer " << layer;
    if (config().ratio(layer) == 1 || length % 2 == 0) continue;
    EXPECT_LT(max_difference(read.open_value(0, source, length - 1),
                             expected_.floats(recorded("state_kv", layer))),
              kTolerance);
    EXPECT_LT(max_difference(read.open_gate(0, source, length - 1),
                             expected_.floats(recorded("state_score", layer))),
              kTolerance);
  }
}

// The unfinished group that an odd prompt leaves.
TEST_P(Backbone, OpenGroupAfterPrefill) {
  const int prompt = GetParam().prompt;
  ASSERT_EQ(prompt % 2, 1);
  model_->run(0, tokens_, 0, prompt);
  const StateReader read(config(), model_->state->view());
  const std::string layer = std::to_string(config().kv_source_layers[0]);
  EXPECT_LT(max_difference(read.open_value(0, 0, prompt - 1), expect("prefill.state_kv." + layer)),
            kTolerance);
  EXPECT_LT(
      max_difference(read.open_gate(0, 0, prompt - 1), expect("prefill.state_score." + layer)),
      kTolerance);
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
