// The mixture of experts: rows grouped by expert, so that an expert's weights are read once for all
// rows that chose it (spec: model.md 5.11).
//
// A wave is a run of (expert, row) pairs in ascending expert order that fits the scratch memory.
// Within a wave the first products of all its experts are one parallel loop, then the gates, then
// the second products. Pairs are added to their rows in ascending expert order, the shared expert
// last: waves follow that order and so does the addition within a wave.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "backend/cpu/cpu_backend.h"

namespace peregrine {
namespace {

constexpr int64_t kWavePairs = 128;
constexpr int64_t kStepRows = 512;        // rows whose inputs are prepared at a time
constexpr int64_t kAccumulateCols = 512;  // columns of one piece of the addition

struct Pair {
  int32_t expert;  // routed.size() for the shared one
  int32_t row;
  float weight;
};

// All pairs of the rows, by expert, then by row.
std::vector<Pair> list_pairs(const ExpertsArgs& args) {
  std::vector<Pair> pairs;
  const int64_t active = args.ids.cols;
  for (int64_t r = 0; r < args.u.rows; ++r) {
    for (int64_t slot = 0; slot < active; ++slot) {
      const int64_t at = r * active + slot;
      pairs.push_back({args.ids.i32()[at], static_cast<int32_t>(r), args.weights.f32()[at]});
    }
    if (args.shared != nullptr) {
      pairs.push_back({static_cast<int32_t>(args.routed.size()), static_cast<int32_t>(r), 1.0f});
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const Pair& a, const Pair& b) { return a.expert < b.expert; });
  return pairs;
}

}  // namespace

struct CpuBackend::ExpertWave {
  std::vector<Pair> pairs;
  cpu::PreparedRows routed_inputs;  // of all rows
  cpu::PreparedRows shared_inputs;

  const Expert& expert(const ExpertsArgs& args, const Pair& pair) const {
    return is_shared(args, pair) ? *args.shared : args.routed[static_cast<size_t>(pair.expert)];
  }
  static bool is_shared(const ExpertsArgs& args, const Pair& pair) {
    return static_cast<size_t>(pair.expert) == args.routed.size();
  }
  // Calls fn(first pair, number of pairs) for every expert.
  template <typename Fn>
  void for_each_expert(Fn fn) const {
    for (size_t begin = 0; begin < pairs.size();) {
      size_t end = begin;
      while (end < pairs.size() && pairs[end].expert == pairs[begin].expert) ++end;
      fn(begin, end - begin);
      begin = end;
    }
  }
};

void CpuBackend::run_wave(const ExpertsArgs& args, ExpertWave& wave) {
  const size_t count = wave.pairs.size();
  const int64_t dim = args.out.cols;
  int64_t inner = 0;
  size_t inner_bytes = 0;  // a prepared row for w2
  for (const Pair& pair : wave.pairs) {
    const Weight& w2 = wave.expert(args, pair).w2;
    inner = std::max(inner, w2.in);
    inner_bytes = std::max(inner_bytes, products_.row_bytes(w2));
  }
  const size_t inner_floats = (static_cast<size_t>(inner) + 15) / 16 * 16;
  const size_t dim_floats = (static_cast<size_t>(dim) + 15) / 16 * 16;
  const size_t row_floats = 2 * inner_floats + dim_floats;
  std::byte* scratch = expert_scratch_.reserve(count * (row_floats * sizeof(float) + inner_bytes));
  float* floats = reinterpret_cast<float*>(scratch);
  std::byte* prepared = scratch + count * row_floats * sizeof(float);

  std::vector<float*> gates(count), ups(count), results(count);
  std::vector<const std::byte*> inputs(count), inner_inputs(count);
  for (size_t i = 0; i < count; ++i) {
    gates[i] = floats + i * row_floats;
    ups[i] = gates[i] + inner_floats;
    results[i] = ups[i] + inner_floats;
    const Pair& pair = wave.pairs[i];
    inputs[i] =
        (ExpertWave::is_shared(args, pair) ? wave.shared_inputs : wave.routed_inputs).row(pair.row);
    inner_inputs[i] = prepared + i * inner_bytes;
  }

  std::vector<cpu::Product> work;
  const auto add_product = [&](const Weight& w, size_t first, size_t rows,
                               const std::vector<const std::byte*>& in,
                               const std::vector<float*>& out) {
    work.push_back({.weight = &w,
                    .begin = 0,
                    .end = w.out,
                    .inputs = in.data() + first,
                    .outputs = out.data() + first,
                    .rows = static_cast<int>(rows),
                    .round = rounds()});
  };
  wave.for_each_expert([&](size_t first, size_t rows) {
    const Expert& expert = wave.expert(args, wave.pairs[first]);
    add_product(expert.w1, first, rows, inputs, gates);
    add_product(expert.w3, first, rows, inputs, ups);
  });
  products_.run(work);

  // The routing weight multiplies before w2's quantisation.
  pool_.parallel_for(static_cast<int64_t>(count), [&](int64_t i) {
    const size_t at = static_cast<size_t>(i);
    const Weight& w2 = wave.expert(args, wave.pairs[at]).w2;
    kernels_.vector.gate(gates[at], ups[at], wave.pairs[at].weight, config().swiglu_limit, w2.in,
                         rounds());
    products_.prepare_row(w2, LinearKind::kQuantised, gates[at], prepared + at * inner_bytes);
  });

  work.clear();
  wave.for_each_expert([&](size_t first, size_t rows) {
    add_product(wave.expert(args, wave.pairs[first]).w2, first, rows, inner_inputs, results);
  });
  products_.run(work);

  const int64_t pieces = (dim + kAccumulateCols - 1) / kAccumulateCols;
  pool_.parallel_for(pieces, [&](int64_t piece) {
    const int64_t begin = piece * kAccumulateCols;
    const int64_t cols = std::min(kAccumulateCols, dim - begin);
    for (size_t i = 0; i < count; ++i) {
      kernels_.vector.accumulate(results[i] + begin, cols,
                                 args.out.f32() + wave.pairs[i].row * dim + begin);
    }
  });
}

void CpuBackend::experts(const ExpertsArgs& args) {
  if (args.u.rows > kStepRows) {
    for (int64_t begin = 0; begin < args.u.rows; begin += kStepRows) {
      const int64_t rows = std::min(kStepRows, args.u.rows - begin);
      ExpertsArgs part = args;
      part.u = args.u.slice(begin, rows);
      part.ids = args.ids.slice(begin, rows);
      part.weights = args.weights.slice(begin, rows);
      part.out = args.out.slice(begin, rows);
      experts(part);
    }
    return;
  }
  // Routed and shared experts may be stored in different formats, which want different layouts.
  const std::vector<Pair> pairs = list_pairs(args);
  const Weight& routed = args.routed[0].w1;
  const size_t routed_bytes = products_.row_bytes(routed) * static_cast<size_t>(args.u.rows);
  const size_t shared_bytes = args.shared == nullptr ? 0
                                                     : products_.row_bytes(args.shared->w1) *
                                                           static_cast<size_t>(args.u.rows);
  std::byte* inputs = input_scratch_.reserve(routed_bytes + shared_bytes);
  ExpertWave wave;
  wave.routed_inputs = products_.prepare(routed, LinearKind::kQuantised, args.u.f32(), args.u.rows,
                                         args.u.cols, inputs);
  if (args.shared != nullptr) {
    wave.shared_inputs = products_.prepare(args.shared->w1, LinearKind::kQuantised, args.u.f32(),
                                           args.u.rows, args.u.cols, inputs + routed_bytes);
  }

  std::memset(args.out.data, 0, args.out.bytes());
  for (size_t begin = 0; begin < pairs.size();) {
    size_t end = std::min(pairs.size(), begin + static_cast<size_t>(kWavePairs));
    // Not in the middle of an expert, unless it fills a wave alone.
    if (end < pairs.size() && pairs[begin].expert != pairs[end].expert) {
      while (pairs[end - 1].expert == pairs[end].expert) --end;
    }
    wave.pairs.assign(pairs.begin() + static_cast<int64_t>(begin),
                      pairs.begin() + static_cast<int64_t>(end));
    run_wave(args, wave);
    begin = end;
  }
  if (!rounds()) return;
  pool_.parallel_for(args.out.rows, [&](int64_t r) {
    kernels_.vector.round_row(args.out.f32() + r * args.out.cols, args.out.cols);
  });
}

void CpuBackend::gate(Tensor a, Tensor b) {
  pool_.parallel_for(a.rows, [&](int64_t r) {
    kernels_.vector.gate(a.f32() + r * a.cols, b.f32() + r * b.cols, /*weight=*/1.0f,
                         config().swiglu_limit, a.cols, rounds());
  });
}

}  // namespace peregrine
