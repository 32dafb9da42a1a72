// Kernels that cut and put together what tensor-parallel GPUs share (nccl_tensors.h).
#pragma once

#include <cuda_runtime_api.h>

#include "backend/backend.h"

namespace peregrine {

// How `cols` columns in units of `unit` are shared by `ranks` ranks: TensorSplit::share_of.
struct ColumnShares {
  int64_t cols = 0, unit = 1;
  int ranks = 1;
};

// whole[r] = the columns of all ranks. Rank k's, [rows, its columns] without gaps, begin at
// gathered + k * block_bytes. Elements of 2 or 4 bytes.
void spread_columns(const void* gathered, size_t block_bytes, const ColumnShares& shares,
                    Tensor whole, cudaStream_t stream);

// For an embedding table of shares.cols rows: local[r] = the row of token r in the table of `rank`,
// 0 where another rank holds it; places[r * copies + c] = owner * rows + r, the row of a gather.
void place_tokens(const int32_t* tokens, int rows, int copies, const ColumnShares& shares, int rank,
                  int32_t* local, int32_t* places, cudaStream_t stream);

// Pairs of a row and one of its experts, ids and weights [rows, active] as in ExpertsArgs, experts
// shared as `shares` says: rows_of[p] = the pair's row, local[p] and weights_out[p] = its expert
// and weight on `rank`, 0 and 0 where another rank holds the expert.
void place_pairs(Tensor ids, Tensor weights, const ColumnShares& shares, int rank, int32_t* rows_of,
                 int32_t* local, float* weights_out, cudaStream_t stream);

// out[r] = act(sum of the pairs' results in ascending expert order, then + shared[r]): pair p of
// rank k is row p of [pairs, dim] act values at gathered + k * block_bytes.
void add_pairs(const void* gathered, size_t block_bytes, Tensor ids, const ColumnShares& shares,
               Tensor shared, Tensor out, cudaStream_t stream);

}  // namespace peregrine
