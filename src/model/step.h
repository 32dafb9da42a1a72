// What one step runs: rows of one or more sequences (spec: model.md section 7, prefill.md section
// 6).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/tensor.h"

namespace peregrine {

// Consecutive positions start .. start + count - 1 of the sequence in `slot`. The caller has
// reserved pages for them (StateStore::reserve).
struct Segment {
  int slot = 0;
  int64_t start = 0;
  int count = 0;
  std::span<const int32_t> tokens;  // ids of positions 0 .. start + count - 1, all in range
  std::span<const uint8_t> image;   // a flag a position, or empty: no images

  // Encoder replay after a prefix hit: no window key below window_floor is read, no global row of a
  // group that ends below write_floor is written. Both 0 otherwise.
  int64_t window_floor = 0;
  int64_t write_floor = 0;

  // Positions decoder_start .. start + count - 1 run through the decoder layers: start, the whole
  // segment; start + count, none (an inner chunk of a replay prefill). Below decoder_window_floor
  // the decoder layers see no window key.
  int64_t decoder_start = 0;
  int64_t decoder_window_floor = 0;

  int logits = 0;  // logits of the last `logits` positions are wanted (at most the decoder rows)
};

struct Step {
  std::vector<Segment> segments;

  int rows() const {
    int n = 0;
    for (const Segment& s : segments) n += s.count;
    return n;
  }
};

// Row numbers that a step assigned to a segment.
struct SegmentRows {
  int decoder_row = 0;  // first row in Forward::taps()
  int decoder_count = 0;
  int logits_row = 0;  // first row in Forward::logits()
};

}  // namespace peregrine
