// Rows of a sequence's state as numbers, for comparison with recorded caches. Host backends only:
// rows are read where the KvView says they lie.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "checkpoint/config.h"

namespace peregrine::test {

// Row `r` of a selection or of candidate blocks.
std::vector<int32_t> list_of(const Selection& selection, int r);

// What the indexer computes for one query and `rows` keys (spec: model.md 5.6 step 3), from the
// arguments that it ran with. Row `r` of the step, at position `pos` of the sequence in `slot`.
// Positions from `count` on and those the query cannot see are -inf.
std::vector<float> index_scores(const IndexArgs& args, const KvView& kv, Numerics numerics,
                                int index_head_dim, int r, int slot, int64_t pos, int64_t count);

class StateReader {
 public:
  StateReader(const ModelConfig& config, const KvView& kv) : config_(config), kv_(kv) {}

  std::vector<float> window_row(int slot, int ring_layer, int64_t pos) const;  // [head_dim]
  std::vector<float> compressed_row(int slot, int source, int64_t row) const;  // [head_dim]
  std::vector<float> index_key(int slot, int source, int64_t row) const;       // [index_head_dim]
  std::vector<float> open_value(int slot, int source, int64_t pos) const;      // a, [head_dim]
  std::vector<float> open_gate(int slot, int source, int64_t pos) const;       // g, [head_dim]

  // As the recordings keep them: ring slot = position mod window, after `tokens` positions.
  std::vector<float> ring(int slot, int ring_layer, int64_t tokens) const;
  std::vector<float> compressed(int slot, int source, int64_t rows) const;
  std::vector<float> index_keys(int slot, int source, int64_t rows) const;

 private:
  const ModelConfig& config_;
  const KvView& kv_;
};

}  // namespace peregrine::test
