// The rule every backend keeps: the bits of a row depend on that row and its sequence alone, never
// on the rows beside it, their number or their order, nor on how a sequence is cut into steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "support/backend_rig.h"

namespace peregrine::test {
namespace {

constexpr int kRows = 21;

// Computes the chosen rows of an operation: [rows, width] in the order asked.
using RunRows = std::function<std::vector<float>(Rig&, const std::vector<int>&)>;

class Invariance : public testing::TestWithParam<std::string> {
 protected:
  // `rows` rows of `all` [kRows, width].
  static std::vector<float> pick(const std::vector<float>& all, const std::vector<int>& rows) {
    const size_t width = all.size() / kRows;
    std::vector<float> picked;
    for (const int row : rows) {
      picked.insert(picked.end(), all.begin() + row * width, all.begin() + (row + 1) * width);
    }
    return picked;
  }

  // All rows together, each alone, and a few in another order.
  static void expect_invariant(const RunRows& run, const ModelConfig& config = kernel_config()) {
    for (const Numerics numerics : {Numerics::kBF16, Numerics::kF32}) {
      Rig rig(GetParam(), numerics, config);
      std::vector<int> rows(kRows);
      std::iota(rows.begin(), rows.end(), 0);
      const std::vector<float> together = run(rig, rows);
      for (const int row : rows) {
        SCOPED_TRACE("row " + std::to_string(row) + " alone");
        expect_same_bits(run(rig, {row}), pick(together, {row}));
      }
      const std::vector<int> some = {17, 3, 20, 0, 11, 4, 9};
      SCOPED_TRACE("some rows in another order");
      expect_same_bits(run(rig, some), pick(together, some));
    }
  }

  static int64_t count(const std::vector<int>& rows) { return static_cast<int64_t>(rows.size()); }

  std::mt19937 random_{99};
};
INSTANTIATE_TEST_SUITE_P(Devices, Invariance, testing::ValuesIn(test_devices()),
                         [](const auto& info) { return info.param; });

TEST_P(Invariance, Linear) {
  const std::vector<float> x = random_bf16(kRows * 160, random_);
  for (const WeightFormat format :
       {WeightFormat::kF8, WeightFormat::kF4, WeightFormat::kBF16, WeightFormat::kF32}) {
    for (const LinearKind kind : {LinearKind::kQuantised, LinearKind::kPlain, LinearKind::kFull}) {
      SCOPED_TRACE(static_cast<int>(format) * 10 + static_cast<int>(kind));
      std::mt19937 weight_random(4);
      expect_invariant([&](Rig& rig, const std::vector<int>& rows) {
        weight_random.seed(4);
        const Weight w = rig.random_weight(format, 72, 160, weight_random);
        const Tensor y =
            kind == LinearKind::kFull ? rig.make(count(rows), 72) : rig.make_act(count(rows), 72);
        rig->linear(rig.act(pick(x, rows), count(rows)), w, kind, y);
        return rig.floats(y);
      });
    }
  }
}

TEST_P(Invariance, GroupedLinear) {
  const std::vector<float> x = random_bf16(kRows * 2 * 96, random_);
  expect_invariant([&](Rig& rig, const std::vector<int>& rows) {
    std::mt19937 weight_random(4);
    const Weight w = rig.random_weight(WeightFormat::kF8, 2 * 40, 96, weight_random);
    const Tensor y = rig.make_act(count(rows), 2 * 40);
    rig->grouped_linear(rig.act(pick(x, rows), count(rows)), w, 2, y);
    return rig.floats(y);
  });
}

TEST_P(Invariance, NormAndConfidence) {
  const std::vector<float> x = random_bf16(kRows * 96, random_);
  const std::vector<float> e = random_bf16(kRows * 32, random_);
  const std::vector<float> norm = random_bf16(96, random_);
  const std::vector<float> proj = random_values(128, random_);
  expect_invariant([&](Rig& rig, const std::vector<int>& rows) {
    const Tensor y = rig.make_act(count(rows), 96);
    const Tensor logits = rig.make(count(rows), 1);
    rig->rms_norm(rig.act(pick(x, rows), count(rows)), rig.vector(norm), y);
    rig->confidence(y, rig.act(pick(e, rows), count(rows)), rig.weight(proj, 1), logits);
    std::vector<float> result;
    const std::vector<float> normed = rig.floats(y), raw = rig.floats(logits);
    for (size_t r = 0; r < rows.size(); ++r) {
      result.insert(result.end(), normed.begin() + r * 96, normed.begin() + (r + 1) * 96);
      result.push_back(raw[r]);
    }
    return result;
  });
}

TEST_P(Invariance, HyperConnections) {
  const std::vector<float> x = random_bf16(kRows * 4 * 96, random_);
  const std::vector<float> v = random_bf16(kRows * 96, random_);
  const std::vector<float> fn = random_values(24 * 4 * 96, random_, 0.1f);
  const std::vector<float> base = random_values(24, random_);
  const std::vector<float> norm = random_bf16(96, random_);
  expect_invariant([&](Rig& rig, const std::vector<int>& rows) {
    const int64_t n = count(rows);
    const Tensor stream = rig.act(pick(x, rows), n);
    const HcMix mix{rig.make(n, 4), rig.make(n, 4), rig.make(n, 16)};
    rig->hc_mixes(
        stream,
        {.fn = rig.vector(fn), .base = rig.vector(base), .scale = rig.vector({1.0f, 0.5f, 2.0f})},
        mix);
    const Tensor u = rig.make_act(n, 96);
    rig->hc_collapse_norm(stream, mix.pre, rig.vector(norm), u);
    const Tensor tap = rig.make_act(n, 96);
    rig->hc_tap(stream, 0, tap);
    rig->add(u, tap);
    rig->hc_expand(rig.act(pick(v, rows), n), mix.post, mix.comb, stream);
    const std::vector<float> streams = rig.floats(stream), sums = rig.floats(tap);
    std::vector<float> result;
    for (size_t r = 0; r < rows.size(); ++r) {
      result.insert(result.end(), streams.begin() + r * 384, streams.begin() + (r + 1) * 384);
      result.insert(result.end(), sums.begin() + r * 96, sums.begin() + (r + 1) * 96);
    }
    return result;
  });
}

TEST_P(Invariance, Engram) {
  constexpr int kColumns = 3, kWidth = 32, kTableRows = 50, kDim = 96;
  const std::vector<float> x = random_bf16(kRows * 4 * kDim, random_);
  const std::vector<float> gain = random_values(4 * kDim, random_);
  std::vector<uint8_t> codes(kTableRows * kWidth), scales(kTableRows);
  for (uint8_t& code : codes) code = static_cast<uint8_t>(random_() % 0x7F);
  for (uint8_t& scale : scales) scale = static_cast<uint8_t>(115 + random_() % 6);
  std::vector<int64_t> ids(kRows * kColumns);
  for (int64_t& id : ids) id = static_cast<int64_t>(random_() % kTableRows);
  expect_invariant([&](Rig& rig, const std::vector<int>& rows) {
    const int64_t n = count(rows);
    std::vector<int64_t> picked;
    std::vector<uint8_t> is_image;
    for (const int row : rows) {
      picked.insert(picked.end(), ids.begin() + row * kColumns, ids.begin() + (row + 1) * kColumns);
      is_image.push_back(row % 5 == 0 ? 1 : 0);
    }
    const Tensor gathered = rig.make_act(n, kColumns * kWidth);
    rig->engram_gather({.codes = rig.bytes(codes),
                        .scales = rig.bytes(scales),
                        .rows = kTableRows,
                        .width = kWidth},
                       rig.longs(picked), kColumns, gathered);
    std::mt19937 weight_random(4);
    const Weight w =
        rig.random_weight(WeightFormat::kF8, 5 * kDim, kColumns * kWidth, weight_random);
    const Tensor kv = rig.make_act(n, 5 * kDim);
    rig->linear(gathered, w, LinearKind::kQuantised, kv);
    const Tensor stream = rig.act(pick(x, rows), n);
    rig->engram_mix(
        {.x = stream, .kv = kv, .gain = rig.vector(gain), .is_image = rig.bytes(is_image)});
    return rig.floats(stream);
  });
}

TEST_P(Invariance, RouterAndExperts) {
  constexpr int kDim = 96, kInner = 64, kExperts = 8, kActive = 3;
  const std::vector<float> u = random_bf16(kRows * kDim, random_);
  const std::vector<float> logits = random_values(kRows * kExperts, random_, 2);
  const std::vector<float> bias = random_values(kExperts, random_);
  for (const WeightFormat format : {WeightFormat::kF4, WeightFormat::kF32}) {
    expect_invariant([&](Rig& rig, const std::vector<int>& rows) {
      const int64_t n = count(rows);
      const Tensor ids = rig.make(n, kActive, Elem::kI32);
      const Tensor weights = rig.make(n, kActive);
      rig->route(rig.full(pick(logits, rows), n),
                 {.bias = rig.vector(bias), .n_experts = kExperts, .n_active = kActive}, nullptr,
                 ids, weights);
      std::mt19937 weight_random(4);
      const auto expert = [&](WeightFormat of) {
        return Expert{rig.random_weight(of, kInner, kDim, weight_random),
                      rig.random_weight(of, kDim, kInner, weight_random),
                      rig.random_weight(of, kInner, kDim, weight_random)};
      };
      std::vector<Expert> routed;
      for (int e = 0; e < kExperts; ++e) routed.push_back(expert(format));
      const Expert shared =
          expert(format == WeightFormat::kF4 ? WeightFormat::kF8 : WeightFormat::kF32);
      const Tensor out = rig.make_act(n, kDim);
      rig->experts({.u = rig.act(pick(u, rows), n),
                    .ids = ids,
                    .weights = weights,
                    .routed = routed,
                    .shared = &shared,
                    .out = out});
      return rig.floats(out);
    });
  }
}

// ---- state ------------------------------------------------------------------------------------

constexpr int kLength = 45, kHeads = 4, kDim = 64, kIndexHeads = 8;

// What one sequence feeds in, by position.
struct Sequence {
  explicit Sequence(uint32_t seed) : random(seed) {}
  std::mt19937 random;
  std::vector<float> kv = random_bf16(kLength * kDim, random);
  std::vector<float> a = random_values(kLength * kDim, random);
  std::vector<float> g = random_values(kLength * kDim, random);
  std::vector<float> q = random_bf16(kLength * kHeads * kDim, random);
  std::vector<float> index_q = random_bf16(kLength * kIndexHeads * kDim, random);
  std::vector<float> index_weights = random_bf16(kLength * kIndexHeads, random, 0.05f);
};

// Runs the attention operations over steps made of segments of the sequences (a segment's slot is
// its sequence) and collects each sequence's outputs by position.
class StateRun {
 public:
  StateRun(Rig& rig, const ModelConfig& config, const std::vector<Sequence>& sequences, int ratio)
      : rig_(rig), config_(config), sequences_(sequences), ratio_(ratio) {
    kv_ = make_kv(rig, config, {.slots = static_cast<int>(sequences.size())});
    outputs_.resize(sequences.size());
  }

  void step(const std::vector<Segment>& segments) {
    const StepRows step = rig_.step(Step(segments));
    const int64_t n = step.rows;
    const Tensor kv = act(segments, &Sequence::kv);
    const Tensor packed = rig_.make(n, static_cast<int64_t>(kv_.window_row_bytes), Elem::kU8);
    rig_->pack_window(kv, packed);

    Tensor latent = kv;
    if (ratio_ == 2) {
      latent = rig_.make_act(n, kDim);
      rig_->compress_pairs(rig_.full(values(segments, &Sequence::a), n),
                           rig_.full(values(segments, &Sequence::g), n), step, 0, kv_, latent);
    }
    const float* frequencies = rig_.vector({1.0f, 0.3f, 0.1f, 0.02f});
    rig_->rope(latent, 1, step,
               {.frequencies = frequencies, .rope_dim = 8, .position_step = ratio_});
    rig_->store_index_keys(latent, step, 0, ratio_, kv_);
    const Selection selected = select(segments, step);
    rig_->store_compressed(latent, step, 0, ratio_, kv_);

    const Tensor out = rig_.make_act(n, kHeads * kDim);
    rig_->sparse_attention({.q = act(segments, &Sequence::q),
                            .window = packed,
                            .source = 0,
                            .selected = selected,
                            .sinks = rig_.vector({0.5f, -1, 0, 2}),
                            .out = out},
                           step, kv_);
    rig_->store_window(packed, step, 0, kv_);
    collect(segments, rig_.floats(out), rig_.lists(selected, n));
  }

  const std::vector<float>& output(int sequence) const { return outputs_[sequence]; }

 private:
  // Publishes candidates with one query, then selects inside them with another.
  Selection select(const std::vector<Segment>& segments, const StepRows& step) {
    IndexArgs args{.q = act(segments, &Sequence::index_q),
                   .weights = act(segments, &Sequence::index_weights),
                   .ratio = ratio_,
                   .mode = IndexMode::kPublish,
                   .selected = rig_.selection(step.rows, config_.index_topk),
                   .candidates = rig_.selection(step.rows, config_.candidate_topk_blocks)};
    rig_->index_select(args, step, kv_);
    args.mode = IndexMode::kReindex;
    rig_->scale(args.weights, -1.5f);
    rig_->index_select(args, step, kv_);
    return args.selected;
  }

  std::vector<float> values(const std::vector<Segment>& segments,
                            std::vector<float> Sequence::*field) const {
    std::vector<float> picked;
    for (const Segment& segment : segments) {
      const std::vector<float>& all = sequences_[segment.slot].*field;
      const size_t width = all.size() / kLength;
      picked.insert(picked.end(), all.begin() + segment.pos * width,
                    all.begin() + (segment.pos + segment.rows) * width);
    }
    return picked;
  }
  Tensor act(const std::vector<Segment>& segments, std::vector<float> Sequence::*field) {
    int64_t rows = 0;
    for (const Segment& segment : segments) rows += segment.rows;
    return rig_.act(values(segments, field), rows);
  }

  void collect(const std::vector<Segment>& segments, const std::vector<float>& out,
               const std::vector<std::vector<int32_t>>& selected) {
    size_t row = 0;
    for (const Segment& segment : segments) {
      std::vector<float>& output = outputs_[segment.slot];
      for (int i = 0; i < segment.rows; ++i, ++row) {
        const auto first = out.begin() + row * kHeads * kDim;
        output.insert(output.end(), first, first + kHeads * kDim);
        output.insert(output.end(), selected[row].begin(), selected[row].end());
      }
    }
  }

  Rig& rig_;
  const ModelConfig& config_;
  const std::vector<Sequence>& sequences_;
  const int ratio_;
  KvView kv_;
  std::vector<std::vector<float>> outputs_;
};

TEST_P(Invariance, StateDoesNotDependOnHowSequencesAreCutIntoSteps) {
  const std::vector<Sequence> sequences = {Sequence(1), Sequence(2)};
  const ModelConfig config = kernel_config();
  for (const int ratio : {1, 2}) {
    for (const Numerics numerics : {Numerics::kBF16, Numerics::kF32}) {
      Rig rig(GetParam(), numerics, config);
      StateRun whole(rig, config, sequences, ratio);
      whole.step({{.slot = 0, .pos = 0, .rows = kLength}});
      whole.step({{.slot = 1, .pos = 0, .rows = kLength}});

      for (const int chunk : {1, 2, 3, 16, 44}) {
        SCOPED_TRACE("chunks of " + std::to_string(chunk));
        StateRun chunked(rig, config, sequences, ratio);
        for (int pos = 0; pos < kLength; pos += chunk) {
          chunked.step({{.slot = 0, .pos = pos, .rows = std::min(chunk, kLength - pos)}});
        }
        expect_same_bits(chunked.output(0), whole.output(0));
      }

      SCOPED_TRACE("two sequences in one step, one seven rows behind the other");
      StateRun batched(rig, config, sequences, ratio);
      batched.step({{.slot = 0, .pos = 0, .rows = 7}});
      for (int pos = 0; pos < kLength; pos += 5) {
        std::vector<Segment> segments = {
            {.slot = 1, .pos = pos, .rows = std::min(5, kLength - pos)}};
        if (pos + 7 < kLength) {
          segments.push_back({.slot = 0, .pos = pos + 7, .rows = std::min(5, kLength - pos - 7)});
        }
        batched.step(segments);
      }
      expect_same_bits(batched.output(0), whole.output(0));
      expect_same_bits(batched.output(1), whole.output(1));
    }
  }
}

}  // namespace
}  // namespace peregrine::test
