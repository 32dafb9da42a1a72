// The rows that one query sees, in the order of the list: ring rows, rows of the step itself, then
// selected compressed rows (spec: model.md 5.9 and section 7; drafter: dspark.md section 3).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/backend.h"

namespace peregrine::cuda {

struct ListArgs {
  const uint8_t* window;  // packed rows of the step
  int64_t window_stride;  // bytes from one to the next
  int ring_layer;
  bool causal;  // else the drafter's mask
  int source;   // -1: window only
  Selection selected;
  StepRows step;
  KvView kv;
};

inline ListArgs list_args(const AttentionArgs& args, const StepRows& step, const KvView& kv) {
  return {.window = args.window.u8(),
          .window_stride = args.window.cols,
          .ring_layer = args.ring_layer,
          .causal = args.mask == AttentionMask::kCausal,
          .source = args.source,
          .selected = args.selected,
          .step = step,
          .kv = kv};
}

struct QueryList {
  int slot;
  int ring_begin;   // position of the first ring row
  int ring_rows;    // entries from the ring
  int step_begin;   // first row of the step
  int window_rows;  // entries from ring and step
  int rows;         // all entries
  const int32_t* chosen;
};

__device__ inline QueryList list_of(const ListArgs& args, int row) {
  const StepRows& step = args.step;
  const int first = step.first_row[row];
  const int position = step.pos[row];
  const int segment_start = position - (row - first);
  const int oldest = args.causal ? position - args.kv.window + 1 : segment_start - args.kv.window;
  const int begin = max(max(oldest, step.window_floor[row]), 0);
  QueryList list;
  list.slot = step.slot[row];
  list.ring_begin = begin;
  list.ring_rows = max(segment_start - begin, 0);
  list.step_begin = args.causal ? first + max(begin - segment_start, 0) : first;
  const int step_end = args.causal ? row + 1 : step.end_row[row];
  list.window_rows = list.ring_rows + max(step_end - list.step_begin, 0);
  list.rows = list.window_rows;
  list.chosen = nullptr;
  if (args.source >= 0) {
    list.chosen = args.selected.rows + static_cast<int64_t>(row) * args.selected.capacity;
    list.rows += args.selected.count[row];
  }
  return list;
}

// Packed bytes of an entry: a window row below list.window_rows, else a compressed row.
__device__ inline const uint8_t* entry_row(const ListArgs& args, const QueryList& list, int entry) {
  if (entry < list.ring_rows)
    return args.kv.ring_row(list.slot, args.ring_layer, list.ring_begin + entry);
  if (entry < list.window_rows)
    return args.window + (list.step_begin + entry - list.ring_rows) * args.window_stride;
  return args.kv.main_row(list.slot, args.source, list.chosen[entry - list.window_rows]);
}

}  // namespace peregrine::cuda
