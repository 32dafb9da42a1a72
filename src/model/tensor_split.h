// Tensor parallelism: which rows of each stored matrix every one of several ranks holds, from the
// config alone (spec: parallel.md).
//
// A matrix [out, in] is cut between output rows, never along `in`: each output value is one rank's
// sum over the whole input, in the order of a single process, so that cutting changes no bit. Cuts
// fall between tiles of 32 rows, which share block scales. Heads follow the output groups that read
// them; shares differ by at most one unit, and a rank may hold nothing of a matrix that has fewer
// units than there are ranks.
#pragma once

#include <cstdint>
#include <string_view>

#include "checkpoint/config.h"
#include "checkpoint/safetensors.h"
#include "model/slice.h"

namespace peregrine {

// Output rows that share block scales.
constexpr int64_t kSplitRows = 32;

class TensorSplit {
 public:
  TensorSplit(int rank, int ranks) : rank_(rank), ranks_(ranks) {}

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  // Consecutive whole units of `unit` of `count`; the last unit may be cut short by `count`.
  Slice share(int64_t count, int64_t unit) const { return share_of(rank_, count, unit); }
  Slice share_of(int rank, int64_t count, int64_t unit) const;
  // The rank that holds item `i` of `count`.
  int owner(int64_t i, int64_t count, int64_t unit) const;

  Slice groups(const ModelConfig& config) const { return share(config.o_groups, 1); }
  Slice heads(const ModelConfig& config) const;
  // Columns of an Engram table, each with its run of table rows.
  Slice engram_columns(const ModelConfig& config) const;
  Slice engram_rows(const ModelConfig& config, int table) const;

  // Of a tensor with `rows` rows (its first dimension), as stored: scales included. All rows of
  // what every rank holds whole.
  Slice rows(const ModelConfig& config, std::string_view tensor, int64_t rows) const;
  // Those rows of it.
  TensorView held(const ModelConfig& config, const TensorView& whole) const;

 private:
  int rank_, ranks_;
};

// Throws Error(kInvalidArgument) when this config's block scales do not allow cuts between output
// groups.
void check_split(const ModelConfig& config);

}  // namespace peregrine
