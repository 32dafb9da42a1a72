// Sparse attention (spec: model.md 5.9, section 7): lists of packed rows, spread over threads by
// step row and group of heads.
#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/cpu_backend.h"

namespace peregrine {
namespace {

constexpr int kHeadTile = 4;  // heads that kernels take together

// With few step rows a row's heads are split, and each group of heads widens the list for itself.
int heads_of_piece(int heads, int rows, int threads) {
  if (rows >= 2 * threads) return heads;
  const int even = (heads + threads - 1) / threads;
  return std::min(heads, (even + kHeadTile - 1) / kHeadTile * kHeadTile);
}

// Oldest window row first; the step's own rows are not in the ring yet.
void list_window(const AttentionArgs& args, const StepRows& step, const KvView& kv, int r,
                 std::vector<const uint8_t*>& list) {
  const bool causal = args.mask == AttentionMask::kCausal;
  const int first = step.first_row[r];
  const int32_t segment_start = step.pos[r] - (r - first);
  const int32_t oldest = causal ? step.pos[r] - kv.window + 1 : segment_start - kv.window;
  const int32_t begin = std::max({oldest, step.window_floor[r], 0});
  for (int32_t p = begin; p < segment_start; ++p) {
    list.push_back(kv.ring_row(step.slot[r], args.ring_layer, p));
  }
  const int from = causal ? first + std::max(begin - segment_start, 0) : first;
  const int to = causal ? r + 1 : step.end_row[r];
  for (int row = from; row < to; ++row) {
    list.push_back(args.window.u8() + row * args.window.cols);
  }
}

}  // namespace

void CpuBackend::sparse_attention(const AttentionArgs& args, const StepRows& step,
                                  const KvView& kv) {
  const int dim = config().head_dim;
  const int heads = static_cast<int>(args.q.cols) / dim;
  const int group = heads_of_piece(heads, step.rows, pool_.threads());
  const int groups = (heads + group - 1) / group;
  const size_t scratch_bytes = kernels_.attention.attend_scratch_bytes(group, dim);
  for (cpu::Scratch& scratch : thread_scratch_) scratch.reserve(scratch_bytes);
  std::vector<std::vector<const uint8_t*>> lists(static_cast<size_t>(pool_.threads()));

  pool_.parallel_for(int64_t{step.rows} * groups, [&](int64_t piece, int thread) {
    const int r = static_cast<int>(piece / groups);
    const int head = static_cast<int>(piece % groups) * group;
    std::vector<const uint8_t*>& list = lists[static_cast<size_t>(thread)];
    list.clear();
    list_window(args, step, kv, r, list);
    const int window_rows = static_cast<int>(list.size());
    if (args.source >= 0) {
      const int32_t* chosen = args.selected.rows + int64_t{r} * args.selected.capacity;
      for (int32_t i = 0; i < args.selected.count[r]; ++i) {
        list.push_back(kv.main_row(step.slot[r], args.source, chosen[i]));
      }
    }
    const int64_t at = r * args.q.cols + int64_t{head} * dim;
    kernels_.attention.attend(
        {.q = args.q.f32() + at,
         .heads = std::min(group, heads - head),
         .dim = dim,
         .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim))),
         .sinks = args.sinks + head,
         .rows = list.data(),
         .window_rows = window_rows,
         .total_rows = static_cast<int>(list.size()),
         .round = rounds(),
         .out = args.out.f32() + at,
         .scratch = thread_scratch_[static_cast<size_t>(thread)].reserve_array<float>(0)});
  });
}

}  // namespace peregrine
