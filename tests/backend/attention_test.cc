// Sparse attention: the recorded lists through the head core, and the visible rows of the operation
// on every backend (spec: model.md 5.9, section 7; dspark.md section 3).
#include "backend/reference/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "formats/bf16.h"
#include "formats/quantize.h"
#include "support/backend_rig.h"

namespace peregrine::test {
namespace {

// ---- one head --------------------------------------------------------------------------------

// The recorded group through attend(): out [rows, heads, dim].
std::vector<float> attend_group(const Fixture& data, const std::string& group, Numerics numerics) {
  const std::vector<int64_t> shape = data.view(group + ".q").shape;
  const int64_t rows = shape.at(1), heads = shape.at(2), dim = shape.at(3);
  std::vector<float> q = data.floats(group + ".q");
  std::vector<float> kv = data.floats(group + ".kv");
  if (numerics == Numerics::kBF16) {
    for (float& value : q) value = round_bf16(value);
    for (float& value : kv) value = round_bf16(value);
  }
  const std::vector<int32_t> slots = data.ints(group + ".idx");
  const std::vector<float> sinks = data.floats(group + ".sink");
  const auto width = static_cast<int64_t>(slots.size()) / rows;
  std::vector<float> out(q.size());
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<const float*> list;
    for (int64_t i = r * width; i < (r + 1) * width; ++i) {
      list.push_back(slots[i] < 0 ? nullptr : kv.data() + slots[i] * dim);
    }
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t at = (r * heads + h) * dim;
      reference::attend({.q = q.data() + at,
                         .dim = static_cast<int>(dim),
                         .scale = data.floats(group + ".scale").front(),
                         .sink = sinks[h]},
                        list, numerics, out.data() + at);
    }
  }
  return out;
}

TEST(AttentionHead, GivesTheRecordedOutputs) {
  const Fixture data(data_path("kernels/expected.safetensors"));
  for (const std::string group : {"sparse_attn.a", "sparse_attn.b", "sparse_attn.c"}) {
    SCOPED_TRACE(group);
    expect_near(attend_group(data, group, Numerics::kF32), data.floats(group + ".out"),
                kF32Tolerance);
    expect_near(attend_group(data, group, Numerics::kBF16), data.floats(group + ".out_bf16_tile"),
                0);
  }
}

// Scores come from q = 1 and rows that carry their score in dim 0 and a unit in their own dim.
std::vector<float> weights_of(const std::vector<float>& scores, float sink) {
  const size_t dim = scores.size() + 1;
  std::vector<float> q(dim, 0.0f);
  q[0] = 1;
  std::vector<float> rows(scores.size() * dim, 0.0f);
  std::vector<const float*> list;
  for (size_t t = 0; t < scores.size(); ++t) {
    rows[t * dim] = scores[t];
    rows[t * dim + t + 1] = 1;
    list.push_back(rows.data() + t * dim);
  }
  std::vector<float> out(dim);
  reference::attend({.q = q.data(), .dim = static_cast<int>(dim), .scale = 1, .sink = sink}, list,
                    Numerics::kF32, out.data());
  out.erase(out.begin());
  return out;
}

TEST(AttentionHead, GivesTheWorkedExamples) {
  expect_near(weights_of({1, 0.5f, -2}, 0.3f), {0.464489f, 0.281727f, 0.023126f}, 1e-6f);
  expect_near(weights_of({-5, -6}, 3), {0.000335309f, 0.000123353f}, 1e-9f);
}

TEST(AttentionHead, EmptyListGivesZeros) {
  const std::vector<float> q = {1, 2};
  std::vector<float> out = {5, 5};
  reference::attend({.q = q.data(), .dim = 2, .scale = 1, .sink = 4}, {}, Numerics::kBF16,
                    out.data());
  EXPECT_EQ(out, (std::vector<float>{0, 0}));
}

// ---- the operation ---------------------------------------------------------------------------

constexpr int kDim = 64;
constexpr float kNoSink = -1e30f;

// A row whose value says which it is: 1 in dim `mark`.
std::vector<float> marked_row(int mark) {
  std::vector<float> row(kDim, 0.0f);
  row[mark] = 1;
  return row;
}

class Attention : public testing::TestWithParam<std::string> {
 protected:
  static Tensor packed_rows(Rig& rig, const KvView& kv, const std::vector<int>& marks) {
    std::vector<float> values;
    for (const int mark : marks) {
      const std::vector<float> row = marked_row(mark);
      values.insert(values.end(), row.begin(), row.end());
    }
    const auto rows = static_cast<int64_t>(marks.size());
    const Tensor packed = rig.make(rows, static_cast<int64_t>(kv.window_row_bytes), Elem::kU8);
    rig->pack_window(rig.act(values, rows), packed);
    return packed;
  }

  static void store_ring(Rig& rig, const KvView& kv, int pos, const std::vector<int>& marks) {
    rig->store_window(packed_rows(rig, kv, marks),
                      rig.step(Step({{.pos = pos, .rows = static_cast<int>(marks.size())}})), 0,
                      kv);
  }

  // Marks that rows of the segment see: a zero query weighs every visible row alike.
  static std::vector<std::set<int>> visible(Rig& rig, const KvView& kv, const Segment& segment,
                                            const std::vector<int>& marks, AttentionMask mask) {
    const int rows = segment.rows;
    const Tensor out = rig.make_act(rows, kDim);
    rig->sparse_attention({.q = rig.make_act(rows, kDim),
                           .window = packed_rows(rig, kv, marks),
                           .mask = mask,
                           .sinks = rig.vector({kNoSink}),
                           .out = out},
                          rig.step(Step({segment})), kv);
    const std::vector<float> values = rig.floats(out);
    std::vector<std::set<int>> seen(static_cast<size_t>(rows));
    for (int r = 0; r < rows; ++r) {
      for (int d = 0; d < kDim; ++d) {
        if (values[r * kDim + d] != 0) seen[r].insert(d);
      }
      for (const int d : seen[r]) {
        EXPECT_NEAR(values[r * kDim + d] * static_cast<float>(seen[r].size()), 1, 1e-5) << d;
      }
    }
    return seen;
  }

  static std::vector<int> range(int begin, int end) {
    std::vector<int> numbers;
    for (int i = begin; i < end; ++i) numbers.push_back(i);
    return numbers;
  }
  static std::set<int> range_set(int begin, int end) {
    const std::vector<int> numbers = range(begin, end);
    return {numbers.begin(), numbers.end()};
  }

  static ModelConfig one_head() {
    ModelConfig config = kernel_config();
    config.n_heads = 1;
    return config;
  }

  const Fixture data_{data_path("kernels/expected.safetensors")};
};
INSTANTIATE_TEST_SUITE_P(Devices, Attention, testing::ValuesIn(test_devices()),
                         [](const auto& info) { return info.param; });

TEST_P(Attention, PromptRowsSeeTheRecordedWindows) {
  for (const int rows : {3, 8, 13}) {
    SCOPED_TRACE(rows);
    Rig rig(GetParam(), Numerics::kF32, one_head());
    const KvView kv = make_kv(rig, one_head(), {});
    const auto seen = visible(rig, kv, {.rows = rows}, range(0, rows), AttentionMask::kCausal);
    const std::vector<int32_t> recorded = data_.ints("window_idx.prefill." + std::to_string(rows));
    const size_t width = recorded.size() / static_cast<size_t>(rows);
    for (int r = 0; r < rows; ++r) {
      std::set<int> expected(recorded.begin() + r * width, recorded.begin() + (r + 1) * width);
      expected.erase(-1);
      EXPECT_EQ(seen[r], expected) << r;
    }
  }
}

// Recorded lists hold ring slots of a ring of 8; slot s seen from p is position p - (p - s) mod 8.
TEST_P(Attention, SingleStepsSeeTheRecordedWindows) {
  for (const int p : {1, 3, 7, 8, 13, 16}) {
    SCOPED_TRACE(p);
    Rig rig(GetParam(), Numerics::kF32, one_head());
    const KvView kv = make_kv(rig, one_head(), {});
    store_ring(rig, kv, 0, range(0, p));
    std::set<int> expected;
    for (const int32_t slot : data_.ints("window_idx.decode." + std::to_string(p))) {
      if (slot >= 0) expected.insert(p - (p - slot + 64) % 8);
    }
    EXPECT_EQ(visible(rig, kv, {.pos = p, .rows = 1}, {p}, AttentionMask::kCausal).front(),
              expected);
  }
}

// Draft rows are slots 8 .. 12 of the recorded lists, at positions P + 1 .. P + 5.
TEST_P(Attention, DraftRowsSeeTheRecordedRows) {
  for (const int last : {1, 6, 7, 8, 20}) {
    SCOPED_TRACE(last);
    Rig rig(GetParam(), Numerics::kF32, one_head());
    const KvView kv = make_kv(rig, one_head(), {});
    store_ring(rig, kv, 0, range(0, last + 1));
    const auto seen = visible(rig, kv, {.pos = last + 1, .rows = 5}, range(last + 1, last + 6),
                              AttentionMask::kBlock);
    const std::vector<int32_t> recorded = data_.ints("dspark_idx." + std::to_string(last));
    const size_t width = recorded.size() / 5;
    for (int r = 0; r < 5; ++r) {
      std::set<int> expected;
      for (size_t i = r * width; i < (r + 1) * width; ++i) {
        const int slot = recorded[i];
        expected.insert(slot >= 8 ? last + 1 + slot - 8 : last - (last - slot + 64) % 8);
      }
      EXPECT_EQ(seen[r], expected) << r;
    }
  }
}

TEST_P(Attention, WindowFloorCutsTheRing) {
  Rig rig(GetParam(), Numerics::kF32, one_head());
  const KvView kv = make_kv(rig, one_head(), {});
  store_ring(rig, kv, 0, range(0, 20));
  const Segment segment{.pos = 20, .rows = 3, .window_floor = 18};
  const auto causal = visible(rig, kv, segment, range(20, 23), AttentionMask::kCausal);
  EXPECT_EQ(causal[0], range_set(18, 21));
  EXPECT_EQ(causal[2], range_set(18, 23));
  const auto block = visible(rig, kv, segment, range(20, 23), AttentionMask::kBlock);
  EXPECT_EQ(block[0], range_set(18, 23));
  EXPECT_EQ(block[2], range_set(18, 23));
  // A floor inside the step hides its earlier rows as well.
  const Segment replayed{.pos = 20, .rows = 3, .window_floor = 21};
  EXPECT_EQ(visible(rig, kv, replayed, range(20, 23), AttentionMask::kCausal)[2],
            range_set(21, 23));
}

// The operation equals the head core over the dequantised rows: window first, then the selected
// compressed rows, with sinks and two sequences in one step.
TEST_P(Attention, OperationEqualsTheHeadCoreOverItsList) {
  for (const Numerics numerics : {Numerics::kF32, Numerics::kBF16}) {
    ModelConfig config = kernel_config();
    config.index_topk = 70;  // more than a tile of 64 with the window
    Rig rig(GetParam(), numerics, config);
    const KvView kv = make_kv(rig, config, {.max_rows = 128});
    std::mt19937 random(21);
    constexpr int kFilled = 100;
    const std::vector<Segment> segments = {{.slot = 1, .pos = kFilled, .rows = 3},
                                           {.slot = 0, .pos = 0, .rows = 2}};
    // Slot 1 holds kFilled tokens; slot 0 is new.
    const std::vector<float> past = random_bf16(kFilled * kDim, random);
    const StepRows filling = rig.step(Step({{.slot = 1, .pos = 0, .rows = kFilled}}));
    const auto width = static_cast<int64_t>(kv.window_row_bytes);
    const Tensor past_packed = rig.make(kFilled, width, Elem::kU8);
    rig->pack_window(rig.act(past, kFilled), past_packed);
    rig->store_window(past_packed, filling, 0, kv);
    rig->store_compressed(rig.act(past, kFilled), filling, 0, 1, kv);

    const std::vector<float> now = random_bf16(5 * kDim, random);
    const Tensor now_packed = rig.make(5, width, Elem::kU8);
    rig->pack_window(rig.act(now, 5), now_packed);
    const std::vector<float> q = random_bf16(5 * 4 * kDim, random);
    const std::vector<float> sinks = {0.5f, -3, 12, 0};
    std::vector<std::vector<int32_t>> chosen(5);
    for (int r = 0; r < 3; ++r) {
      for (int32_t row = r; row < 70 + r; ++row) chosen[r].push_back(row);
    }
    std::vector<int32_t> lists(5 * 70), counts;
    for (int r = 0; r < 5; ++r) {
      std::copy(chosen[r].begin(), chosen[r].end(), lists.begin() + r * 70);
      counts.push_back(static_cast<int32_t>(chosen[r].size()));
    }
    const Selection selected{rig.ints(lists, 5).i32(), rig.ints(counts, 1).i32(), 70};
    const Tensor out = rig.make_act(5, 4 * kDim);
    rig->sparse_attention({.q = rig.act(q, 5),
                           .window = now_packed,
                           .source = 0,
                           .selected = selected,
                           .sinks = rig.vector(sinks),
                           .out = out},
                          rig.step(Step(segments)), kv);
    const std::vector<float> actual = rig.floats(out);

    std::vector<float> past_window = past, past_rows = past, now_window = now;
    act_quant_in_place(past_window.data(), kFilled * kDim);
    fp4_e4m3_in_place(past_rows.data(), kFilled * kDim);
    act_quant_in_place(now_window.data(), 5 * kDim);
    float largest = 0;
    for (const float value : past_window) largest = std::max(largest, std::fabs(value));
    for (int r = 0; r < 5; ++r) {
      std::vector<const float*> list;
      for (int p = kFilled + r - 7; r < 3 && p < kFilled; ++p) {
        list.push_back(past_window.data() + p * kDim);
      }
      for (int row = r < 3 ? 0 : 3; row <= r; ++row) list.push_back(now_window.data() + row * kDim);
      for (const int32_t row : chosen[r]) list.push_back(past_rows.data() + row * kDim);
      for (int h = 0; h < 4; ++h) {
        std::vector<float> expected(kDim);
        const int at = (r * 4 + h) * kDim;
        reference::attend({.q = q.data() + at, .dim = kDim, .scale = 0.125f, .sink = sinks[h]},
                          list, numerics, expected.data());
        for (int i = 0; i < kDim; ++i) {
          // A different order of sums may turn the rounding of a probability and of the result:
          // relative 2^-8 each, of a weighted mean of rows and of the result.
          const float tolerance =
              numerics == Numerics::kF32 ? kF32Tolerance : (largest + std::fabs(expected[i])) / 256;
          ASSERT_NEAR(actual[at + i], expected[i], tolerance) << r << ' ' << h << ' ' << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace peregrine::test
