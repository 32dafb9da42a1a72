// Router and experts against the recorded ones and the worked examples of model.md 5.11.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/backend_rig.h"

namespace peregrine::test {
namespace {

class Experts : public testing::TestWithParam<std::string> {
 protected:
  struct Chosen {
    std::vector<int32_t> ids;
    std::vector<float> weights;
  };

  static Chosen route(Rig& rig, Tensor logits, const std::vector<float>& bias, int active) {
    const Tensor ids = rig.make(logits.rows, active, Elem::kI32);
    const Tensor weights = rig.make(logits.rows, active);
    rig->route(
        logits,
        {.bias = rig.vector(bias), .n_experts = static_cast<int>(bias.size()), .n_active = active},
        nullptr, ids, weights);
    return {rig.ints(ids), rig.floats(weights)};
  }

  // Expert weights stored as `prefix`w1, w2, w3 with `suffix`.
  Expert expert(Rig& rig, const std::string& prefix, const std::string& suffix = "") const {
    return {rig.weight(data_, prefix + "w1" + suffix), rig.weight(data_, prefix + "w2" + suffix),
            rig.weight(data_, prefix + "w3" + suffix)};
  }

  // One expert on every row, with these weights.
  static std::vector<float> run_one(Rig& rig, const Expert& expert, Tensor u,
                                    const std::vector<float>& weights) {
    const Tensor out = rig.make_act(u.rows, u.cols);
    rig->experts({.u = u,
                  .ids = rig.make(u.rows, 1, Elem::kI32),
                  .weights = rig.full(weights, u.rows),
                  .routed = {&expert, 1},
                  .out = out});
    return rig.floats(out);
  }

  const Fixture data_{data_path("kernels/expected.safetensors")};
};
INSTANTIATE_TEST_SUITE_P(Devices, Experts, testing::ValuesIn(test_devices()),
                         [](const auto& info) { return info.param; });

TEST_P(Experts, RouterGivesTheRecordedChoices) {
  for (const std::string group : {"sqrtsoftplus", "sqrtsoftplus_nonorm", "sqrtsoftplus_top1",
                                  "sqrtsoftplus_top3", "sigmoid", "softmax"}) {
    SCOPED_TRACE(group);
    const std::string name = "gate." + group;
    const std::vector<float> params = data_.floats(name + ".params");
    ModelConfig config = kernel_config();
    config.gate_temp = params[0];
    config.route_scale = params[1];
    config.norm_topk_prob = params[2] != 0;
    config.score_func = group == "sigmoid"   ? ScoreFunc::kSigmoid
                        : group == "softmax" ? ScoreFunc::kSoftmax
                                             : ScoreFunc::kSqrtSoftplus;
    const int active = static_cast<int>(params[3]);
    Rig rig(GetParam(), Numerics::kF32, config);
    const Tensor logits = rig.make(12, 8);
    rig->linear(rig.act(data_.floats(name + ".x"), 12), rig.weight(data_, name + ".weight"),
                LinearKind::kFull, logits);
    const Chosen chosen = route(rig, logits, data_.floats(name + ".bias"), active);

    const std::vector<int32_t> ids = data_.ints(name + ".out_indices");
    const std::vector<float> weights = data_.floats(name + ".out_weights");
    for (int r = 0; r < 12; ++r) {
      std::vector<std::pair<int32_t, float>> expected;
      for (int k = r * active; k < (r + 1) * active; ++k) expected.emplace_back(ids[k], weights[k]);
      std::sort(expected.begin(), expected.end());
      for (int k = 0; k < active; ++k) {
        EXPECT_EQ(chosen.ids[r * active + k], expected[k].first) << "row " << r;
        EXPECT_NEAR(chosen.weights[r * active + k], expected[k].second, kF32Tolerance);
      }
    }
  }
}

TEST_P(Experts, RouterGivesTheWorkedExample) {
  Rig rig(GetParam(), Numerics::kF32);
  const std::vector<float> bias = {0, 0.3f, 1.2f, -3, 0, -4, 0.1f, 0.6f};
  const Chosen chosen = route(rig, rig.full({0, 2, -1, 5, -30, 25, 1, 0.5f}, 1), bias, 3);
  EXPECT_EQ(chosen.ids, (std::vector<int32_t>{1, 2, 7}));
  expect_near(chosen.weights, {0.7279741f, 0.2793786f, 0.4926473f}, 1e-6f);
}

TEST_P(Experts, ScoresOfVeryNegativeLogitsDoNotVanish) {
  ModelConfig config = kernel_config();
  config.norm_topk_prob = false;
  config.route_scale = 1;
  Rig rig(GetParam(), Numerics::kF32, config);
  const Chosen chosen =
      route(rig, rig.full({0, 2, -1, 5, -30, 25, 1, 0.5f}, 1), std::vector<float>(8, 0.0f), 8);
  const std::vector<float> expected = {0.8325546f, 1.458399f, 0.5596979f, 2.237569f,
                                       3.059e-07f, 5,         1.145976f,  0.9869534f};
  for (int e = 0; e < 8; ++e) EXPECT_NEAR(chosen.weights[e] / expected[e], 1, 1e-4) << e;
}

TEST_P(Experts, EqualScoresGoToTheLowerNumber) {
  Rig rig(GetParam(), Numerics::kF32);
  const Chosen chosen = route(rig, rig.full({1, 2, 1, 2, 1, 0, 1, 1}, 1), std::vector<float>(8), 4);
  EXPECT_EQ(chosen.ids, (std::vector<int32_t>{0, 1, 2, 3}));
}

TEST_P(Experts, ImageRowsUseTheirOwnBias) {
  Rig rig(GetParam(), Numerics::kF32);
  const Tensor ids = rig.make(2, 1, Elem::kI32);
  const Tensor weights = rig.make(2, 1);
  rig->route(rig.full({1, 1, 1, 1, 1, 1}, 2),
             {.bias = rig.vector({0, 1, 0}),
              .bias_image = rig.vector({0, 0, 1}),
              .n_experts = 3,
              .n_active = 1},
             rig.bytes(std::vector<uint8_t>{0, 1}), ids, weights);
  EXPECT_EQ(rig.ints(ids), (std::vector<int32_t>{1, 2}));
}

TEST_P(Experts, UnquantisedExpertIsTheRecordedOne) {
  for (const std::string limit : {"0.0", "0.75"}) {
    SCOPED_TRACE(limit);
    const std::string name = "expert.f32.limit" + limit + ".";
    ModelConfig config = kernel_config();
    config.swiglu_limit = std::stof(limit);
    Rig rig(GetParam(), Numerics::kF32, config);
    const Tensor u = rig.act(data_.floats(name + "x"), 9);
    const Expert weights = expert(rig, name);
    expect_near(run_one(rig, weights, u, std::vector<float>(9, 1.0f)), data_.floats(name + "out"),
                kF32Tolerance);
    expect_near(run_one(rig, weights, u, data_.floats(name + "weights")),
                data_.floats(name + "out_weighted"), kF32Tolerance);
  }
}

TEST_P(Experts, QuantisedExpertsAreTheRecordedOnes) {
  for (const std::string name : {"expert.fp8.", "expert.fp4."}) {
    SCOPED_TRACE(name);
    ModelConfig config = kernel_config();
    config.swiglu_limit = 1.5f;
    Rig rig(GetParam(), Numerics::kBF16, config);
    const Tensor u = rig.act(data_.floats(name + "x"), 5);
    const Expert weights = expert(rig, name);
    const Tensor gate = rig.make_act(5, 64);
    const Tensor up = rig.make_act(5, 64);
    rig->linear(u, weights.w1, LinearKind::kQuantised, gate);
    rig->linear(u, weights.w3, LinearKind::kQuantised, up);
    expect_same_bits(rig.floats(gate), data_.floats(name + "gate"));
    expect_same_bits(rig.floats(up), data_.floats(name + "up"));
    expect_near(run_one(rig, weights, u, std::vector<float>(5, 1.0f)), data_.floats(name + "out"),
                0);
    expect_near(run_one(rig, weights, u, data_.floats(name + "weights")),
                data_.floats(name + "out_weighted"), 0);
  }
}

TEST_P(Experts, WholeLayerIsTheRecordedOne) {
  ModelConfig config = kernel_config();
  config.swiglu_limit = 1;  // of the recording
  Rig rig(GetParam(), Numerics::kF32, config);
  const Tensor x = rig.act(data_.floats("moe.x"), 11);
  const Tensor logits = rig.make(11, 8);
  rig->linear(x, rig.weight(data_, "moe.w.gate.weight"), LinearKind::kFull, logits);
  const Tensor ids = rig.make(11, 2, Elem::kI32);
  const Tensor weights = rig.make(11, 2);
  rig->route(logits,
             {.bias = rig.vector(data_.floats("moe.w.gate.bias")), .n_experts = 8, .n_active = 2},
             nullptr, ids, weights);
  std::vector<int32_t> recorded = data_.ints("moe.indices");
  std::vector<float> recorded_weights = data_.floats("moe.weights");
  for (size_t i = 0; i < recorded.size(); i += 2) {
    if (recorded[i] < recorded[i + 1]) continue;
    std::swap(recorded[i], recorded[i + 1]);
    std::swap(recorded_weights[i], recorded_weights[i + 1]);
  }
  EXPECT_EQ(rig.ints(ids), recorded);
  expect_near(rig.floats(weights), recorded_weights, kF32Tolerance);

  std::vector<Expert> routed;
  for (int e = 0; e < 8; ++e) {
    routed.push_back(expert(rig, "moe.w.experts." + std::to_string(e) + ".", ".weight"));
  }
  const Expert shared = expert(rig, "moe.w.shared_experts.", ".weight");
  const Tensor out = rig.make_act(11, 64);
  rig->experts(
      {.u = x, .ids = ids, .weights = weights, .routed = routed, .shared = &shared, .out = out});
  expect_near(rig.floats(out), data_.floats("moe.y"), kF32Tolerance);
}

// One input and one inner unit: w1 gives 12 or -15, w3 gives -30 or 1.
TEST_P(Experts, ClampsAreTheWorkedExample) {
  ModelConfig config = kernel_config();
  config.swiglu_limit = 10;
  Rig rig(GetParam(), Numerics::kF32, config);
  const auto run = [&](float gate, float up) {
    const Expert expert{rig.weight({gate}, 1), rig.weight({1}, 1), rig.weight({up}, 1)};
    return run_one(rig, expert, rig.act({1}, 1), {1}).front();
  };
  EXPECT_NEAR(run(12, -30), -99.99546f, 1e-5f * 100);
  EXPECT_NEAR(run(-15, 1), -15 / (1 + std::exp(15.0f)), 1e-10f);
}

}  // namespace
}  // namespace peregrine::test
