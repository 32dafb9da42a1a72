// Views of backend memory: activations, stored weights, and the shape of one step's rows.
//
// Nothing here owns memory. Pointers are in the memory of the backend that made them; only a
// backend may dereference them (for reference and cpu that is ordinary host memory).
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>

#include "formats/host_device.h"

namespace peregrine {

// Storage of an activation matrix. reference and cpu keep every activation as f32 and round the
// value where the model says bf16, so that the formulas stay visible; cuda stores bf16.
enum class Elem : uint8_t { kF32, kBF16, kI32, kU8 };

inline size_t elem_bytes(Elem elem) {
  switch (elem) {
    case Elem::kF32:
    case Elem::kI32:
      return 4;
    case Elem::kBF16:
      return 2;
    case Elem::kU8:
      return 1;
  }
  return 0;
}

// Row-major matrix [rows, cols] without gaps between rows.
struct Tensor {
  void* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  Elem elem = Elem::kF32;

  size_t bytes() const { return static_cast<size_t>(rows * cols) * elem_bytes(elem); }
  // The first `n` rows.
  Tensor first(int64_t n) const {
    assert(n <= rows);
    return {data, n, cols, elem};
  }
  // Rows begin .. begin + n - 1.
  Tensor slice(int64_t begin, int64_t n) const {
    assert(begin + n <= rows);
    return {static_cast<std::byte*>(data) + static_cast<size_t>(begin * cols) * elem_bytes(elem), n,
            cols, elem};
  }
  float* f32() const {
    assert(elem == Elem::kF32);
    return static_cast<float*>(data);
  }
  int32_t* i32() const {
    assert(elem == Elem::kI32);
    return static_cast<int32_t*>(data);
  }
  uint8_t* u8() const {
    assert(elem == Elem::kU8);
    return static_cast<uint8_t*>(data);
  }
};

enum class WeightFormat : uint8_t {
  kF32,
  kBF16,
  kF8,  // e4m3, one e8m0 scale per 32x32 tile: scale[ceil(out/32)][ceil(in/32)]
  kF4,  // e2m1, two a byte along `in`, one e8m0 scale per row and 32 inputs: scale[out][in/32]
};

// A weight matrix [out, in] in its stored format (spec: quantization.md section 6).
// `data` is aligned to its element; F8 and F4 need `in` to be a multiple of 32.
struct Weight {
  WeightFormat format = WeightFormat::kF32;
  int64_t out = 0;
  int64_t in = 0;
  const void* data = nullptr;
  const uint8_t* scale = nullptr;

  explicit operator bool() const { return data != nullptr; }
  size_t data_bytes() const {
    const size_t n = static_cast<size_t>(out * in);
    switch (format) {
      case WeightFormat::kF32:
        return n * 4;
      case WeightFormat::kBF16:
        return n * 2;
      case WeightFormat::kF8:
        return n;
      case WeightFormat::kF4:
        return n / 2;
    }
    return 0;
  }
  size_t scale_bytes() const {
    if (format == WeightFormat::kF8)
      return static_cast<size_t>((out + 31) / 32) * static_cast<size_t>((in + 31) / 32);
    if (format == WeightFormat::kF4) return static_cast<size_t>(out * (in / 32));
    return 0;
  }
  size_t bytes() const { return data_bytes() + scale_bytes(); }
};

// The rows of one step, as arrays in backend memory with one entry a row. Consecutive rows of one
// sequence form a segment: consecutive positions, same slot.
struct StepRows {
  int rows = 0;
  const int32_t* token = nullptr;
  const int32_t* pos = nullptr;           // absolute position
  const int32_t* slot = nullptr;          // sequence slot in the KvView
  const int32_t* first_row = nullptr;     // first row of this row's segment
  const int32_t* end_row = nullptr;       // one past the last row of this row's segment
  const int32_t* window_floor = nullptr;  // no window key below this position is visible (replay)
  const uint8_t* writes_kv = nullptr;  // 0: rows replayed under a cached prefix write no global KV
  const uint8_t* is_image = nullptr;
};

// Per-sequence state as the operations see it (spec: model.md section 6). Owned by cache/.
// Main row: head_dim/2 bytes of e2m1 codes, then head_dim/16 e4m3 scales.
// Index row: index_head_dim/2 bytes of e2m1 codes, then index_head_dim/32 e8m0 scales.
// Window row: head_dim bytes of e4m3 codes, then head_dim/32 e8m0 scales.
struct KvView {
  // rings [slot][ring layer][ring_rows][window_row_bytes]; position p lives in row p mod ring_rows.
  // ring_rows exceeds the window, so that rows of rejected or truncated positions destroy nothing
  // that is still visible.
  uint8_t* rings = nullptr;
  int ring_layers = 0;
  int ring_rows = 0;
  int window = 0;
  size_t window_row_bytes = 0;

  // Pages hold rows_per_page main rows, then as many index rows, of one KV source.
  // Row j of a source lives in page page_table[slot][source][j / rows_per_page].
  uint8_t* pages = nullptr;
  size_t page_bytes = 0;
  int rows_per_page = 0;
  size_t main_row_bytes = 0;
  size_t index_row_bytes = 0;
  const int32_t* page_table = nullptr;  // [slot][source][max_pages]
  int sources = 0;
  int max_pages = 0;

  // Ungrouped halves of ratio-2 sources: [slot][source][tail_rows][2][head_dim] f32, first a (kv),
  // then g (gate); the even position p lives in row (p / 2) mod tail_rows.
  float* tails = nullptr;
  int tail_rows = 0;
  int head_dim = 0;

  PEREGRINE_HD uint8_t* ring_row(int slot_index, int layer, int64_t pos) const {
    const size_t row = (static_cast<size_t>(slot_index) * static_cast<size_t>(ring_layers) +
                        static_cast<size_t>(layer)) *
                           static_cast<size_t>(ring_rows) +
                       static_cast<size_t>(pos % ring_rows);
    return rings + row * window_row_bytes;
  }
  PEREGRINE_HD uint8_t* page_of(int slot_index, int source, int64_t row) const {
    const int32_t page =
        page_table[(static_cast<int64_t>(slot_index) * sources + source) * max_pages +
                   row / rows_per_page];
    return pages + static_cast<size_t>(page) * page_bytes;
  }
  PEREGRINE_HD uint8_t* main_row(int slot_index, int source, int64_t row) const {
    return page_of(slot_index, source, row) +
           static_cast<size_t>(row % rows_per_page) * main_row_bytes;
  }
  PEREGRINE_HD uint8_t* index_row(int slot_index, int source, int64_t row) const {
    return page_of(slot_index, source, row) + static_cast<size_t>(rows_per_page) * main_row_bytes +
           static_cast<size_t>(row % rows_per_page) * index_row_bytes;
  }
  PEREGRINE_HD float* tail(int slot_index, int source, int64_t pos) const {
    const size_t row = (static_cast<size_t>(slot_index) * static_cast<size_t>(sources) +
                        static_cast<size_t>(source)) *
                           static_cast<size_t>(tail_rows) +
                       static_cast<size_t>((pos / 2) % tail_rows);
    return tails + row * 2 * static_cast<size_t>(head_dim);
  }
};

// Rows chosen by an indexer, one list a step row, ascending.
struct Selection {
  int32_t* rows = nullptr;   // [step rows][capacity]
  int32_t* count = nullptr;  // [step rows]
  int capacity = 0;
};

}  // namespace peregrine
