// The backbone in the released number formats against tests/data/backbone_quant.
//
// Layer by layer the recording is sharp: every layer starts from the recorded stream and uses the
// recorded selection. The one difference is the attention kernel: the recording keeps probabilities
// in f32, backends round them to bf16 as the GPU kernel does. The reference backend with
// unrounded probabilities must therefore reproduce the streams almost exactly; with rounded ones it
// stays within a bound that follows from the rounding. Whole-model logits can only be compared
// statistically, with the README's criterion.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "backend/reference/reference_backend.h"
#include "support/fixtures.h"
#include "support/model_fixture.h"
#include "support/state_reader.h"

namespace peregrine::test {
namespace {

// Attention as in the recording: probabilities meet the values unrounded.
class UnroundedProbabilities : public ReferenceBackend {
 public:
  UnroundedProbabilities(const ModelConfig& config, Numerics numerics)
      : ReferenceBackend(config, numerics), full_(config, Numerics::kF32) {}
  void sparse_attention(const AttentionArgs& args, const StepRows& step,
                        const KvView& kv) override {
    full_.sparse_attention(args, step, kv);
    float* out = args.out.f32();
    for (int64_t i = 0; i < args.out.rows * args.out.cols; ++i) out[i] = round(out[i]);
  }

 private:
  ReferenceBackend full_;
};

constexpr int kPrompt = 41;

// Root mean square of a - b over that of b.
double relative_rms(const float* a, const float* b, size_t n) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < n; ++i) {
    const double d = static_cast<double>(a[i]) - b[i];
    difference += d * d;
    size += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / size);
}

// Runs the recorded prompt; every layer is compared and then replaced by the recording.
class LayerByLayer {
 public:
  explicit LayerByLayer(ModelUnderTest& model)
      : expected_(data_path("backbone_quant/expected.safetensors")),
        tokens_(expected_.ints("long.tokens")),
        model_(model) {
    model_.forward->hooks.after_layer = [this](int layer, Tensor x, Tensor pre) {
      compare_layer(layer, x, pre);
    };
    model_.forward->hooks.after_selection = [this](int layer, const IndexArgs& args) {
      compare_selection(layer, args);
    };
  }
  void run() { logits_ = model_.run(0, tokens_, 0, kPrompt); }

  double worst_token = 0;    // relative rms of a token's stream
  double worst_pre_mix = 0;  // absolute
  std::vector<double> all_tokens;
  size_t unequal_elements = 0, elements = 0;
  size_t unequal_score_rows = 0, score_rows = 0;
  double worst_score = 0;       // of the largest score of its row
  double worst_logit() const {  // from the recorded last stream
    return max_difference(logits_, expected_.floats("long.prefill.logits"));
  }

  // Global rows that the prompt wrote.
  void compare_global_rows() const {
    const ModelConfig& config = model_.checkpoint.config;
    const StateReader read(config, model_.state->view());
    for (int source = 0; source < model_.state->sources(); ++source) {
      const std::string layer =
          std::to_string(config.kv_source_layers[static_cast<size_t>(source)]);
      const int64_t rows = model_.state->rows_of(source, kPrompt);
      const auto start_of = [&](const std::string& name, size_t n) {
        auto values = expected_.floats("fixed.long.final." + name + "." + layer);
        values.resize(n);
        return values;
      };
      const auto compressed = read.compressed(0, source, rows);
      EXPECT_EQ(compressed, start_of("compress_kv", compressed.size())) << "layer " << layer;
      const auto keys = read.index_keys(0, source, rows);
      EXPECT_EQ(keys, start_of("index_k", keys.size())) << "layer " << layer;
    }
  }

 private:
  void compare_layer(int layer, Tensor x, Tensor pre) {
    const std::string number = std::to_string(layer);
    const auto hidden = expected_.floats("long.prefill.hidden." + number);
    const auto mix = expected_.floats("long.prefill.pre_mix." + number);
    const auto got = model_.copy(x);
    ASSERT_EQ(got.size(), hidden.size());
    const size_t width = static_cast<size_t>(x.cols);
    for (size_t token = 0; token < kPrompt; ++token) {
      const double error =
          relative_rms(got.data() + token * width, hidden.data() + token * width, width);
      worst_token = std::max(worst_token, error);
      all_tokens.push_back(error);
    }
    for (size_t i = 0; i < got.size(); ++i) unequal_elements += got[i] != hidden[i] ? 1 : 0;
    elements += got.size();
    worst_pre_mix = std::max(worst_pre_mix, max_difference(model_.copy(pre), mix));
    model_.put(hidden, x);
    model_.put(mix, pre);
  }

  // Scores are made from this layer's input alone, before any attention.
  void compare_selection(int layer, const IndexArgs& args) {
    const ModelConfig& config = model_.checkpoint.config;
    const std::string number = std::to_string(layer);
    const std::string name = "long.prefill.index_score." + number;
    const auto columns = static_cast<int>(expected_.view(name).shape[1]);
    const auto scores = expected_.floats(name);
    const auto recorded = expected_.ints("long.prefill.topk." + number);
    const auto width = static_cast<size_t>(expected_.view("long.prefill.topk." + number).shape[1]);
    const auto mask = expected_.bytes("long.prefill.candidates");
    for (int row = 0; row < kPrompt; ++row) {
      auto got = index_scores(args, model_.state->view(), model_.backend->numerics(),
                              config.index_head_dim, row, 0, row, columns);
      if (args.mode == IndexMode::kReindex)
        for (size_t j = 0; j < got.size(); ++j)
          if (!mask[static_cast<size_t>(row) * got.size() + j])
            got[j] = -std::numeric_limits<float>::infinity();
      const float* want = scores.data() + static_cast<int64_t>(row) * columns;
      compare_scores(got, want);

      // The recording breaks ties its own way: the chosen scores are the same, then its rows go on.
      const int32_t* rows = recorded.data() + static_cast<size_t>(row) * width;
      const std::vector<int32_t> chosen(rows, std::find(rows, rows + width, -1));
      const auto scores_of = [&](const std::vector<int32_t>& list) {
        std::vector<float> values;
        for (const int32_t j : list) values.push_back(want[j]);
        std::sort(values.begin(), values.end());
        return values;
      };
      if (args.mode != IndexMode::kReindex) {
        EXPECT_EQ(scores_of(list_of(args.selected, row)), scores_of(chosen))
            << "layer " << layer << " row " << row;
      }
      std::copy(chosen.begin(), chosen.end(), args.selected.rows + row * args.selected.capacity);
      args.selected.count[row] = static_cast<int32_t>(chosen.size());
    }
  }

  void compare_scores(const std::vector<float>& got, const float* want) {
    double largest = 0, worst = 0;
    for (size_t j = 0; j < got.size(); ++j) {
      if (got[j] == want[j]) {  // infinite ones too
        if (std::isfinite(want[j])) largest = std::max<double>(largest, std::abs(want[j]));
        continue;
      }
      largest = std::max<double>(largest, std::abs(want[j]));
      const double difference = std::abs(static_cast<double>(got[j]) - want[j]);
      if (!(difference <= worst)) worst = std::isnan(difference) ? HUGE_VAL : difference;
    }
    ++score_rows;
    if (worst > 0) {
      ++unequal_score_rows;
      worst_score = std::max(worst_score, worst / largest);
    }
  }

  Fixture expected_;
  std::vector<int32_t> tokens_;
  ModelUnderTest& model_;
  std::vector<float> logits_;
};

TEST(BackboneQuant, LayersAreExactWithUnroundedProbabilities) {
  ModelUnderTest model(data_path("backbone_quant"),
                       [](const ModelConfig& config, Numerics numerics) {
                         return std::make_unique<UnroundedProbabilities>(config, numerics);
                       },
                       {});
  LayerByLayer layers(model);
  layers.run();
  std::printf("streams: %zu of %zu elements differ, worst token %.2g rms-relative; pre %.2g\n",
              layers.unequal_elements, layers.elements, layers.worst_token, layers.worst_pre_mix);
  // The README's independent implementation found 7e-7. In f32 sums of another order one value in
  // ten thousand falls to the other side of a bf16 tie; where that changes an e4m3 code of a window
  // row, the 16 tokens that see the row move with it. So: nearly all tokens of all layers exactly,
  // the others by less than one step of one code in each product (2^-6, derived below).
  const auto exact = std::count_if(layers.all_tokens.begin(), layers.all_tokens.end(),
                                   [](double error) { return error < 1e-6; });
  EXPECT_GT(exact, static_cast<int64_t>(layers.all_tokens.size()) * 9 / 10);
  EXPECT_LT(layers.worst_token, std::exp2(-6));
  EXPECT_EQ(layers.unequal_score_rows, 0u);
  EXPECT_LT(layers.worst_logit(), 1e-5);
  layers.compare_global_rows();
}

class BackboneQuantOn : public ::testing::TestWithParam<std::string> {};

// How far rounded probabilities may move a layer. Each probability moves by at most 2^-9 of itself,
// so o moves by d1 <= 2^-9 of its size. A product that quantises its input to e4m3 (steps of 2^-3
// of a value, so s = 2^-3 / sqrt(12) rms) turns a small shift d into rms sqrt(s_step * d): a code
// flips with probability d / step and then moves by a step. wo_b: d2 = sqrt(2^-3 * 2^-9) = 2^-6;
// w1, w3 in the experts: d3 = sqrt(2^-3 * 2^-6) = 2^-4.5; w2: d4 = sqrt(2^-3 * 2^-4.5) = 2^-3.75.
// v is no larger than the stream it is added to, so a token's stream moves by at most d4 plus what
// a changed expert choice does, which no recorded token shows.
TEST_P(BackboneQuantOn, LayersStayWithinTheRoundingOfProbabilities) {
  ModelUnderTest model(data_path("backbone_quant"), GetParam());
  LayerByLayer layers(model);
  layers.run();
  std::sort(layers.all_tokens.begin(), layers.all_tokens.end());
  const double median = layers.all_tokens[layers.all_tokens.size() / 2];
  std::printf("%s: token streams: median %.2g, worst %.2g rms-relative; pre %.2g\n",
              GetParam().c_str(), median, layers.worst_token, layers.worst_pre_mix);
  EXPECT_LT(layers.worst_token, std::exp2(-3.75));
  EXPECT_LT(median, std::exp2(-6));
  // Scores are exact where sums are; sums of another order (spec: quantization.md 7) rarely fall to
  // the other side of a bf16 tie, and one step of one head's weight moves a row by 2^-8 of itself.
  std::printf("scores: %zu of %zu rows differ, worst %.2g of the row's largest\n",
              layers.unequal_score_rows, layers.score_rows, layers.worst_score);
  EXPECT_LE(layers.unequal_score_rows, GetParam() == "cuda_visible" ? layers.score_rows / 50 : 0);
  EXPECT_LT(layers.worst_score, std::exp2(-7));
  EXPECT_LT(layers.worst_logit(),
            1e-4);  // from the recorded last stream: a norm and an f32 product
  layers.compare_global_rows();
}

// The README's criterion for whole-model logits.
void expect_statistically_equal(const std::vector<float>& got, const std::vector<float>& want,
                                size_t vocab, const std::string& name) {
  ASSERT_EQ(got.size(), want.size()) << name;
  const size_t rows = want.size() / vocab;
  std::vector<double> worst(rows, 0);
  size_t same = 0;
  for (size_t row = 0; row < rows; ++row) {
    const float* a = got.data() + row * vocab;
    const float* b = want.data() + row * vocab;
    worst[row] = max_difference({a, a + vocab}, {b, b + vocab});
    same += argmax(a, static_cast<int>(vocab)) == argmax(b, static_cast<int>(vocab)) ? 1 : 0;
  }
  std::sort(worst.begin(), worst.end());
  std::printf("%s: median row maximum %.2f, %zu of %zu argmax equal\n", name.c_str(),
              worst[rows / 2], same, rows);
  EXPECT_LT(worst[rows / 2], 1.0) << name;
  EXPECT_GE(static_cast<double>(same), 0.8 * static_cast<double>(rows)) << name;
}

TEST_P(BackboneQuantOn, WholeModel) {
  const Fixture expected(data_path("backbone_quant/expected.safetensors"));
  for (const auto& [name, prompt] : {std::pair<std::string, int>{"long", 41}, {"short", 3}}) {
    ModelUnderTest model(data_path("backbone_quant"), GetParam());
    const auto vocab = static_cast<size_t>(model.checkpoint.config.vocab_size);
    const auto tokens = expected.ints(name + ".tokens");
    const auto prefill = model.run(0, tokens, 0, prompt);
    std::vector<float> decode;
    for (int64_t pos = prompt; pos < static_cast<int64_t>(tokens.size()); ++pos) {
      const auto row = model.run(0, tokens, pos, pos + 1);
      decode.insert(decode.end(), row.begin(), row.end());
    }
    const std::string title = GetParam() + " " + name;
    // Three rows are no sample for a share; their maximum still is one for the median.
    if (prompt > 3) {
      for (const std::string kind : {"logits", "logits_tile"})
        expect_statistically_equal(prefill, expected.floats(name + ".prefill." + kind), vocab,
                                   title + " prefill against " + kind);
    }
    expect_statistically_equal(decode, expected.floats("fixed." + name + ".decode.logits"), vocab,
                               title + " decode");
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, BackboneQuantOn, ::testing::ValuesIn(backends()));

}  // namespace
}  // namespace peregrine::test
