#include "backend/cuda/act_vector.cuh"
#include "backend/cuda/launch.h"
#include "parallel/nccl_columns.h"

namespace peregrine {
namespace {

constexpr int kThreads = 256;

unsigned blocks_for(int64_t n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); }

__device__ int64_t thread_index() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

__device__ int64_t units_of(const ColumnShares& s) { return (s.cols + s.unit - 1) / s.unit; }
__device__ int64_t begin_of(const ColumnShares& s, int64_t rank) {
  return min(s.cols, units_of(s) * rank / s.ranks * s.unit);
}
__device__ int owner_of(const ColumnShares& s, int64_t i) {
  return static_cast<int>(((i / s.unit + 1) * s.ranks - 1) / units_of(s));
}

template <typename T>
__global__ void spread_kernel(const std::byte* gathered, size_t block_bytes, ColumnShares shares,
                              T* whole) {
  const int64_t col = thread_index(), row = blockIdx.y;
  if (col >= shares.cols) return;
  const int rank = owner_of(shares, col);
  const int64_t begin = begin_of(shares, rank), width = begin_of(shares, rank + 1) - begin;
  const T* from = reinterpret_cast<const T*>(gathered + static_cast<size_t>(rank) * block_bytes);
  whole[row * shares.cols + col] = from[row * width + col - begin];
}

__global__ void tokens_kernel(const int32_t* tokens, int rows, int copies, ColumnShares shares,
                              int rank, int32_t* local, int32_t* places) {
  const int64_t row = thread_index();
  if (row >= rows) return;
  const int32_t token = tokens[row];
  const int owner = owner_of(shares, token);
  local[row] = owner == rank ? token - static_cast<int32_t>(begin_of(shares, rank)) : 0;
  for (int copy = 0; copy < copies; ++copy)
    places[row * copies + copy] = owner * rows + static_cast<int32_t>(row);
}

__global__ void pairs_kernel(const int32_t* ids, const float* weights, int64_t pairs,
                             int64_t active, ColumnShares shares, int rank, int32_t* rows_of,
                             int32_t* local, float* weights_out) {
  const int64_t pair = thread_index();
  if (pair >= pairs) return;
  const bool held = owner_of(shares, ids[pair]) == rank;
  rows_of[pair] = static_cast<int32_t>(pair / active);
  local[pair] = held ? ids[pair] - static_cast<int32_t>(begin_of(shares, rank)) : 0;
  weights_out[pair] = held ? weights[pair] : 0.0f;
}

template <typename T>
__global__ void add_kernel(const std::byte* gathered, size_t block_bytes, const int32_t* ids,
                           int64_t active, ColumnShares shares, const T* shared, int64_t dim,
                           T* out) {
  const int64_t col = thread_index(), row = blockIdx.y;
  if (col >= dim) return;
  float sum = 0, value[1];
  for (int64_t k = 0; k < active; ++k) {  // ids ascend
    const int64_t pair = row * active + k;
    const auto rank = static_cast<size_t>(owner_of(shares, ids[pair]));
    cuda::load_vector(reinterpret_cast<const T*>(gathered + rank * block_bytes) + pair * dim + col,
                      value);
    sum += value[0];
  }
  cuda::load_vector(shared + row * dim + col, value);
  value[0] += sum;
  cuda::store_vector(out + row * dim + col, value);
}

}  // namespace

void spread_columns(const void* gathered, size_t block_bytes, const ColumnShares& shares,
                    Tensor whole, cudaStream_t stream) {
  if (whole.rows == 0) return;
  const dim3 grid(blocks_for(shares.cols), static_cast<unsigned>(whole.rows));
  const auto* from = static_cast<const std::byte*>(gathered);
  if (whole.elem == Elem::kBF16) {
    spread_kernel<<<grid, kThreads, 0, stream>>>(from, block_bytes, shares,
                                                 static_cast<uint16_t*>(whole.data));
  } else {
    spread_kernel<<<grid, kThreads, 0, stream>>>(from, block_bytes, shares,
                                                 static_cast<uint32_t*>(whole.data));
  }
  cuda::check_launch("spreading columns");
}

void place_tokens(const int32_t* tokens, int rows, int copies, const ColumnShares& shares, int rank,
                  int32_t* local, int32_t* places, cudaStream_t stream) {
  if (rows == 0) return;
  tokens_kernel<<<blocks_for(rows), kThreads, 0, stream>>>(tokens, rows, copies, shares, rank,
                                                           local, places);
  cuda::check_launch("placing tokens");
}

void place_pairs(Tensor ids, Tensor weights, const ColumnShares& shares, int rank, int32_t* rows_of,
                 int32_t* local, float* weights_out, cudaStream_t stream) {
  const int64_t pairs = ids.rows * ids.cols;
  if (pairs == 0) return;
  pairs_kernel<<<blocks_for(pairs), kThreads, 0, stream>>>(
      static_cast<const int32_t*>(ids.data), static_cast<const float*>(weights.data), pairs,
      ids.cols, shares, rank, rows_of, local, weights_out);
  cuda::check_launch("placing pairs");
}

void add_pairs(const void* gathered, size_t block_bytes, Tensor ids, const ColumnShares& shares,
               Tensor shared, Tensor out, cudaStream_t stream) {
  if (out.rows == 0) return;
  const dim3 grid(blocks_for(out.cols), static_cast<unsigned>(out.rows));
  cuda::with_act(out.elem == Elem::kBF16 ? Numerics::kBF16 : Numerics::kF32, [&](auto* type) {
    using T = cuda::ActOf<decltype(type)>;
    add_kernel<T><<<grid, kThreads, 0, stream>>>(
        static_cast<const std::byte*>(gathered), block_bytes, static_cast<const int32_t*>(ids.data),
        ids.cols, shares, static_cast<const T*>(shared.data), out.cols, static_cast<T*>(out.data));
  });
  cuda::check_launch("adding results of experts");
}

}  // namespace peregrine
