// The rows of a step as device arrays: built on the host, uploaded once per step.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "model/engram_hash.h"
#include "model/step.h"

namespace peregrine {

class RowSet {
 public:
  // `tables` Engram tables with `columns` rows a token; 0 without Engram.
  RowSet(Backend& backend, int max_rows, int tables, int columns);
  ~RowSet();
  RowSet(const RowSet&) = delete;
  RowSet& operator=(const RowSet&) = delete;

  void clear();
  // Appends positions begin .. start + count - 1 of the segment.
  void append(const Segment& segment, int64_t begin, int64_t window_floor,
              const EngramHasher* hasher);
  // Appends rows without Engram look-ups: `ids` at positions start, start + 1, ... (drafter).
  void append(int slot, int64_t start, std::span<const int32_t> ids);
  void upload();

  int rows() const { return static_cast<int>(pos_.size()); }
  const StepRows& step() const { return step_; }
  const int64_t* engram_rows(int table) const {
    return engram_device_ + static_cast<size_t>(table) * engram_stride_;
  }

 private:
  Backend& backend_;
  int max_rows_;
  int tables_, columns_;
  size_t engram_stride_;
  std::vector<int32_t> token_, pos_, slot_, first_, end_, floor_;
  std::vector<uint8_t> writes_, image_;
  std::vector<std::vector<int64_t>> engram_;  // [table] rows * columns
  int32_t* device_ = nullptr;                 // six int32 arrays, then two of bytes
  int64_t* engram_device_ = nullptr;
  StepRows step_;
};

}  // namespace peregrine
