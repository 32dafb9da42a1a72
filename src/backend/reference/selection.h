// Choosing the best of a score list: the router, the indexer and the candidate blocks share one
// rule (spec: model.md 5.6, 5.7, 5.11): higher score first, then lower index; NaN counts as -inf.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace peregrine::reference {

// The min(k, scores.size()) best indices, ascending. Replaces every NaN in `scores` by -inf.
std::vector<int32_t> best_indices(std::span<float> scores, int64_t k);

// Blocks of `block_rows` consecutive scores whose maximum is among the `k` highest, ascending. The
// block of the last score always wins a place; picked blocks without a score above -inf are
// dropped. `scores` holds the visible rows only; no scores, no blocks.
std::vector<int32_t> candidate_blocks(std::span<const float> scores, int block_rows, int64_t k);

}  // namespace peregrine::reference
