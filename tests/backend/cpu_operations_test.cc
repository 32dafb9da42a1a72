// The cpu backend's other operations against the reference, on every dispatch target.
//
// Both compute in f32 with different orders of sums, so an act result may differ by one bf16 step
// where the sum lies next to a rounding border, and by f32 noise with f32 numerics.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/reference/selection.h"
#include "formats/quantize.h"
#include "support/cpu_variants.h"

namespace peregrine::test {
namespace {

class CpuOperations : public testing::TestWithParam<CpuVariant> {
 protected:
  std::mt19937 random_{23};
};
INSTANTIATE_TEST_SUITE_P(Targets, CpuOperations, testing::ValuesIn(cpu_variants()),
                         [](const auto& info) { return info.param.name; });

// |actual - expected| <= noise * scale, plus one bf16 step of the value with bf16 numerics; and in
// all but a few elements the bits agree.
void expect_close(const std::vector<float>& actual, const std::vector<float>& expected,
                  Numerics numerics, float scale) {
  ASSERT_EQ(actual.size(), expected.size());
  const float step = numerics == Numerics::kBF16 ? 0x1p-7f : 0.0f;
  size_t different = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_LE(std::fabs(actual[i] - expected[i]), 0x1p-18f * scale + step * std::fabs(expected[i]))
        << i << ": " << actual[i] << " instead of " << expected[i];
    different += actual[i] != expected[i] ? 1 : 0;
  }
  if (numerics == Numerics::kBF16) {
    EXPECT_LE(different, actual.size() / 50 + 2);
  }
}

// A step of several sequences over compressed rows and rings filled with random content.
struct AttentionCase {
  ModelConfig config;
  KvShape shape;
  std::vector<Segment> segments;
};

AttentionCase attention_case() {
  AttentionCase test{.config = kernel_config(), .shape = {}, .segments = {}};
  test.config.n_heads = 19;
  test.config.window_size = 70;
  test.config.index_n_heads = 19;
  test.config.index_topk = 100;
  test.config.candidate_topk_blocks = 30;
  test.config.candidate_block_size = 4;
  test.shape.max_rows = 300;
  test.shape.rows_per_page = 8;
  test.segments = {{.slot = 0, .pos = 0, .rows = 9}, {.slot = 1, .pos = 280, .rows = 11}};
  return test;
}

template <typename Run>
void run_attention_case(Rig& rig, const AttentionCase& test, Run run) {
  std::mt19937 random(77);
  const KvView kv = make_kv(rig, test.config, test.shape);
  const Step step(test.segments);
  // Stored rows of random values, as the operations would pack them.
  const int dim = test.config.head_dim;
  for (int slot = 0; slot < test.shape.slots; ++slot) {
    for (int p = 0; p < kv.ring_rows; ++p) {
      const std::vector<float> row = random_bf16(static_cast<size_t>(dim), random);
      uint8_t* packed = kv.ring_row(slot, 0, p);
      act_quant_row(row.data(), dim, packed, packed + dim);
    }
    for (int j = 0; j < test.shape.max_rows; ++j) {
      const std::vector<float> row = random_bf16(static_cast<size_t>(dim), random);
      uint8_t* packed = kv.main_row(slot, 0, j);
      fp4_e4m3_row(row.data(), dim, packed, packed + dim / 2);
      const int index_dim = test.config.index_head_dim;
      const std::vector<float> key = random_bf16(static_cast<size_t>(index_dim), random);
      uint8_t* packed_key = kv.index_row(slot, 0, j);
      fp4_e8m0_row(key.data(), index_dim, packed_key, packed_key + index_dim / 2);
    }
  }
  run(rig, rig.step(step), kv, random);
}

TEST_P(CpuOperations, SparseAttention) {
  const AttentionCase test = attention_case();
  for (const Numerics numerics : {Numerics::kBF16, Numerics::kF32}) {
    for (const AttentionMask mask : {AttentionMask::kCausal, AttentionMask::kBlock}) {
      for (const int source : {-1, 0}) {
        std::vector<float> results[3];
        const auto compute = [&](Rig& rig) {
          std::vector<float> result;
          run_attention_case(
              rig, test, [&](Rig& r, const StepRows& step, const KvView& kv, std::mt19937& random) {
                const int64_t width = test.config.n_heads * test.config.head_dim;
                const std::vector<float> q =
                    random_bf16(static_cast<size_t>(step.rows * width), random);
                const Tensor window =
                    r.make(step.rows, static_cast<int64_t>(kv.window_row_bytes), Elem::kU8);
                r->pack_window(r.full(random_bf16(static_cast<size_t>(step.rows) *
                                                      static_cast<size_t>(test.config.head_dim),
                                                  random),
                                      step.rows),
                               window);
                const Selection selected = r.selection(step.rows, 100);
                for (int row = 0; row < step.rows; ++row) {
                  const int visible = std::min(100, step.pos[row] + 1);
                  selected.count[row] = visible;
                  for (int i = 0; i < visible; ++i) {
                    selected.rows[row * 100 + i] = step.pos[row] + 1 - visible + i;
                  }
                }
                const Tensor out = r.make_act(step.rows, width);
                r->sparse_attention({.q = r.full(q, step.rows),
                                     .window = window,
                                     .mask = mask,
                                     .source = source,
                                     .selected = selected,
                                     .sinks = r.vector(random_values(19, random)),
                                     .out = out},
                                    step, kv);
                result = r.floats(out);
              });
          return result;
        };
        Rig oracle("reference", numerics, test.config);
        results[0] = compute(oracle);
        for (const int threads : {1, 3}) {
          Rig rig(make_cpu(GetParam(), numerics, threads, test.config));
          results[threads == 1 ? 1 : 2] = compute(rig);
        }
        SCOPED_TRACE(testing::Message() << "source " << source << " mask " << static_cast<int>(mask)
                                        << " f32 " << (numerics == Numerics::kF32));
        expect_close(results[1], results[0], numerics, 4.0f);
        expect_same_bits(results[2], results[1]);
      }
    }
  }
}

// Scores are sums in the reference's order with exact products, so selections are equal.
TEST_P(CpuOperations, IndexSelectionEqualsTheReference) {
  const AttentionCase test = attention_case();
  for (const Numerics numerics : {Numerics::kBF16, Numerics::kF32}) {
    for (const int ratio : {1, 2}) {
      const auto compute = [&](Rig& rig) {
        std::vector<std::vector<int32_t>> lists;
        run_attention_case(
            rig, test, [&](Rig& r, const StepRows& step, const KvView& kv, std::mt19937& random) {
              const int heads = test.config.index_n_heads;
              const int64_t width = heads * test.config.index_head_dim;
              IndexArgs args{
                  .q = r.full(random_bf16(static_cast<size_t>(step.rows * width), random),
                              step.rows),
                  .weights = r.full(
                      random_bf16(static_cast<size_t>(step.rows * heads), random, 0.1f), step.rows),
                  .source = 0,
                  .ratio = ratio,
                  .mode = IndexMode::kFull,
                  .selected = r.selection(step.rows, 100),
                  .candidates = r.selection(step.rows, 30)};
              for (const IndexMode mode :
                   {IndexMode::kFull, IndexMode::kPublish, IndexMode::kReindex}) {
                args.mode = mode;
                if (mode == IndexMode::kReindex) {
                  args.q = r.full(random_bf16(static_cast<size_t>(step.rows * width), random),
                                  step.rows);
                }
                r->index_select(args, step, kv);
                for (auto& list : r.lists(args.selected, step.rows)) lists.push_back(list);
              }
              for (auto& list : r.lists(args.candidates, step.rows)) lists.push_back(list);
            });
        return lists;
      };
      Rig oracle("reference", numerics, test.config);
      const auto expected = compute(oracle);
      for (const int threads : {1, 3}) {
        Rig rig(make_cpu(GetParam(), numerics, threads, test.config));
        EXPECT_EQ(compute(rig), expected);
      }
    }
  }
}

TEST_P(CpuOperations, ExpertsOfLongAndShortSteps) {
  constexpr int kDim = 96, kInner = 64, kExperts = 5, kActive = 2;
  for (const Numerics numerics : {Numerics::kBF16, Numerics::kF32}) {
    for (const int64_t rows : {1, 6, 150}) {
      const auto compute = [&](Rig& rig) {
        std::mt19937 random(9);
        const auto expert = [&](WeightFormat format) {
          return Expert{rig.random_weight(format, kInner, kDim, random),
                        rig.random_weight(format, kDim, kInner, random),
                        rig.random_weight(format, kInner, kDim, random)};
        };
        std::vector<Expert> routed;
        for (int e = 0; e < kExperts; ++e) routed.push_back(expert(WeightFormat::kF4));
        const Expert shared = expert(WeightFormat::kF8);
        std::vector<int32_t> ids;
        for (int64_t r = 0; r < rows; ++r) {
          // Most rows choose expert 0, so that it fills more than a wave.
          ids.push_back(r % 7 == 6 ? 2 : 0);
          ids.push_back(3 + static_cast<int32_t>(random() % 2));
        }
        const Tensor out = rig.make_act(rows, kDim);
        rig->experts(
            {.u = rig.full(random_bf16(static_cast<size_t>(rows * kDim), random, 0.2f), rows),
             .ids = rig.ints(ids, rows),
             .weights = rig.full(random_values(static_cast<size_t>(rows * kActive), random), rows),
             .routed = routed,
             .shared = &shared,
             .out = out});
        return rig.floats(out);
      };
      Rig oracle("reference", numerics);
      const std::vector<float> expected = compute(oracle);
      float largest = 1;
      for (const float value : expected) largest = std::max(largest, std::fabs(value));
      Rig one(make_cpu(GetParam(), numerics, 1));
      const std::vector<float> actual = compute(one);
      ASSERT_EQ(actual.size(), expected.size());
      // A flipped rounding inside moves an output by a bf16 step of one summand.
      for (size_t i = 0; i < actual.size(); ++i) {
        ASSERT_LE(std::fabs(actual[i] - expected[i]),
                  (numerics == Numerics::kBF16 ? 0x1p-6f : 0x1p-18f) * largest)
            << i;
      }
      Rig three(make_cpu(GetParam(), numerics, 3));
      expect_same_bits(compute(three), actual);
    }
  }
}

std::vector<int32_t> top_k(int64_t target, const std::vector<float>& scores, int64_t k,
                           bool skip_infinite) {
  const auto n = static_cast<int64_t>(scores.size());
  std::vector<uint32_t> scratch(cpu::top_k_scratch(n));
  std::vector<int32_t> chosen(static_cast<size_t>(k));
  chosen.resize(static_cast<size_t>(cpu::kernels_for(target).top_k({.scores = scores.data(),
                                                                    .n = n,
                                                                    .k = k,
                                                                    .skip_infinite = skip_infinite,
                                                                    .scratch = scratch.data(),
                                                                    .out = chosen.data()})));
  return chosen;
}

TEST(TopK, AgreesWithTheReferenceRule) {
  for (const int64_t target : cpu::supported_targets()) {
    std::mt19937 random(31);
    for (int round = 0; round < 300; ++round) {
      const int64_t n = 1 + static_cast<int64_t>(random() % 200);
      const int64_t k = 1 + static_cast<int64_t>(random() % 60);
      std::vector<float> scores(static_cast<size_t>(n));
      for (float& score : scores) {
        // Few distinct values, signed zeros, infinities and NaN: ties everywhere.
        const uint32_t kind = random() % 12;
        score = static_cast<float>(static_cast<int>(random() % 5) - 2) * 0.25f;
        if (kind == 0) score = -0.0f;
        if (kind == 1) score = -INFINITY;
        if (kind == 2) score = std::nanf("");
        if (kind == 3) score = random_values(1, random).front();
      }
      EXPECT_EQ(top_k(target, scores, k, false), reference::best_indices(scores, k));
    }
  }
}

// Scores that differ in all their bits, as many as a long context has.
TEST(TopK, FindsTheBestOfManyDistinctScores) {
  std::mt19937 random(32);
  std::vector<float> scores = random_values(5003, random);
  for (const int64_t target : cpu::supported_targets())
    for (const int64_t k : {1, 128, 5002, 5003, 6000})
      EXPECT_EQ(top_k(target, scores, k, false), reference::best_indices(scores, k)) << k;
}

TEST(TopK, LeavesOutInfiniteOnes) {
  const std::vector<float> scores = {-INFINITY, 1, std::nanf(""), -3, -INFINITY, INFINITY};
  for (const int64_t target : cpu::supported_targets()) {
    EXPECT_EQ(top_k(target, scores, 5, true), (std::vector<int32_t>{1, 3, 5}));
    EXPECT_EQ(top_k(target, scores, 6, true), (std::vector<int32_t>{1, 3, 5}));
  }
}

}  // namespace
}  // namespace peregrine::test
