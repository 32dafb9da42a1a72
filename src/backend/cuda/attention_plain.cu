// Sparse attention with f32 products: one block a query row and head, one warp an entry. It takes
// every head dimension that is a multiple of 32 and both numerics, and makes no attempt at speed.
#include <cmath>

#include "backend/cuda/attention_kernels.h"
#include "backend/cuda/attention_list.cuh"
#include "backend/cuda/common.cuh"
#include "backend/cuda/pdl.cuh"
#include "formats/quantize.h"

namespace peregrine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kTileRows = 64;
constexpr float kMaximumStart = -1e30f;

template <typename T>
struct PlainArgs {
  ListArgs list;
  const T* q;  // [rows, heads * dim]
  T* out;
  const float* sinks;  // [heads]
  int dim;
  float scale;
};

__device__ float window_value(const uint8_t* packed, int dim, int i) {
  return e4m3_value(packed[i]) * e8m0_value(packed[dim + i / kActBlock]);
}
__device__ float compressed_value(const uint8_t* packed, int dim, int i) {
  return e2m1_value(e2m1_unpack(packed, i)) * e4m3_value(packed[dim / 2 + i / kFp4E4m3Block]);
}

// Shared memory: numerators [dim], the query [dim], a tile of rows [kTileRows][dim].
template <typename T>
__global__ void __launch_bounds__(kThreads) plain_kernel(PlainArgs<T> args) {
  extern __shared__ float memory[];
  __shared__ float scores[kTileRows];
  grid_wait();
  grid_launch();
  const int dim = args.dim;
  float* numerators = memory;
  float* query = memory + dim;
  float* tile = query + dim;
  const int head = static_cast<int>(blockIdx.y);
  const int row = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t at = (static_cast<int64_t>(row) * gridDim.y + head) * dim;
  const QueryList list = list_of(args.list, row);
  for (int i = thread; i < dim; i += kThreads) {
    numerators[i] = 0;
    query[i] = widen(args.q[at + i]);
  }

  float maximum = kMaximumStart;
  float denominator = 0;
  for (int begin = 0; begin < list.rows; begin += kTileRows) {
    const int count = min(kTileRows, list.rows - begin);
    __syncthreads();  // the last tile has been used, the query is there
    for (int t = thread / kWarp; t < count; t += kWarps) {
      const uint8_t* packed = entry_row(args.list, list, begin + t);
      const bool windowed = begin + t < list.window_rows;
      float sum = 0;
      for (int i = thread % kWarp; i < dim; i += kWarp) {
        const float value =
            windowed ? window_value(packed, dim, i) : compressed_value(packed, dim, i);
        tile[t * dim + i] = value;
        sum = __fmaf_rn(query[i], value, sum);
      }
      sum = warp_sum(sum) * args.scale;
      if (thread % kWarp == 0) scores[t] = sum;
    }
    __syncthreads();
    const float before = maximum;
    for (int t = 0; t < count; ++t) maximum = fmaxf(maximum, scores[t]);
    const float rescale = expf(before - maximum);
    float tile_sum = 0;
    for (int t = 0; t < count; ++t) tile_sum += expf(scores[t] - maximum);
    denominator = denominator * rescale + tile_sum;
    for (int i = thread; i < dim; i += kThreads) {
      float sum = numerators[i] * rescale;
      for (int t = 0; t < count; ++t)
        sum = __fmaf_rn(round_act<T>(expf(scores[t] - maximum)), tile[t * dim + i], sum);
      numerators[i] = sum;
    }
  }
  // Without any row the sink term is infinite and the quotient zero.
  denominator += expf(args.sinks[head] - maximum);
  for (int i = thread; i < dim; i += kThreads)
    store_act(args.out + at + i, numerators[i] / denominator);
}

}  // namespace

void attend_plainly(const Launch& launch, const AttentionArgs& args, const StepRows& step,
                    const KvView& kv) {
  const int dim = launch.config.head_dim;
  const dim3 grid(static_cast<unsigned>(step.rows), static_cast<unsigned>(args.q.cols / dim));
  const size_t shared_bytes = static_cast<size_t>(kTileRows + 2) * dim * sizeof(float);
  with_act(launch.numerics, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    check(cudaFuncSetAttribute(plain_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)),
          "shared memory of attention");
    start(plain_kernel<T>, grid, dim3(kThreads), shared_bytes, launch.stream,
          PlainArgs<T>{.list = list_args(args, step, kv),
                       .q = static_cast<const T*>(args.q.data),
                       .out = static_cast<T*>(args.out.data),
                       .sinks = args.sinks,
                       .dim = dim,
                       .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)))});
  });
}

}  // namespace peregrine::cuda
