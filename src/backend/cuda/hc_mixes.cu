// Coefficients of the hyper-connections (spec: model.md 5.3): 24 products of a row of the stream
// with f32 weights, its sum of squares, then sigmoids and the Sinkhorn iteration.
//
// Bytes: the weights (1.97 MB at the released shape) once for every eight rows, the stream once.
// The products are split by columns over many blocks, always in the same pieces; a second kernel
// adds the pieces in a fixed order, so the number of rows changes nothing.
#include <algorithm>

#include "backend/cuda/act_vector.cuh"
#include "backend/cuda/hyper_connections.h"
#include "backend/cuda/norm.cuh"
#include "backend/cuda/pdl.cuh"
#include "backend/cuda/refuse.h"

namespace peregrine::cuda {
namespace {

constexpr int kCopies = 4;
constexpr int kMixes = (2 + kCopies) * kCopies;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kWarpMixes = kMixes / kWarps;  // products of a warp
constexpr int kValues = kWarpMixes + 1;      // and the sum of squares
constexpr int kRows = kWarp / kValues;       // rows of the stream that a warp takes at once
constexpr int kPiece = 4;                    // columns of one load
constexpr int kLanePieces = 2;
constexpr int kColumns = kWarp * kPiece * kLanePieces;  // columns of a block
constexpr int kSums = kMixes + 1;                       // products, then squares
static_assert(kWarpMixes * kWarps == kMixes && kRows * kValues == kWarp);

template <typename T>
struct PartArgs {
  const T* x;       // [rows, cols]
  const float* fn;  // [kMixes, cols]
  int rows;
  int cols;
  float* parts;  // [rows][blocks of columns][kSums]
};

// Halves kN sums over 2 kN lanes: a lane keeps the sums of its half of the values.
template <int kN>
__device__ void transposed_sums(float (&v)[kWarp]) {
  const bool upper = (threadIdx.x & kN) != 0;
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    const float kept = upper ? v[i + kN] : v[i];
    const float given = upper ? v[i] : v[i + kN];
    v[i] = kept + __shfl_xor_sync(0xFFFFFFFFu, given, kN);
  }
  if constexpr (kN > 1) transposed_sums<kN / 2>(v);
}

// Sums v[i] over the warp, for all i at once: lane i returns the sum of v[i]. Every sum has the
// tree of warp_sum().
__device__ float transposed_sum(float (&v)[kWarp]) {
  transposed_sums<kWarp / 2>(v);
  return v[0];
}

// blockIdx.x: columns; blockIdx.y strides over groups of kRows rows. A warp keeps the weights of
// its three products in registers; the squares are summed by every warp and written by the first.
template <typename T>
__global__ void __launch_bounds__(kThreads) parts_kernel(PartArgs<T> args) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float weights[kWarpMixes][kLanePieces][kPiece];
  int columns[kLanePieces];
#pragma unroll
  for (int p = 0; p < kLanePieces; ++p) {
    columns[p] = static_cast<int>(blockIdx.x) * kColumns + (p * kWarp + lane) * kPiece;
#pragma unroll
    for (int m = 0; m < kWarpMixes; ++m) {
#pragma unroll
      for (int k = 0; k < kPiece; ++k) weights[m][p][k] = 0;
      if (columns[p] < args.cols)
        load_vector(args.fn + static_cast<int64_t>(warp * kWarpMixes + m) * args.cols + columns[p],
                    weights[m][p]);
    }
  }
  grid_wait();  // the weights are no kernel's output
  grid_launch();
  for (int first = static_cast<int>(blockIdx.y) * kRows; first < args.rows;
       first += static_cast<int>(gridDim.y) * kRows) {
    float sums[kWarp] = {};  // [kRows][kValues]
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const bool live = first + r < args.rows;
      const T* x = args.x + static_cast<int64_t>(first + r) * args.cols;
#pragma unroll
      for (int p = 0; p < kLanePieces; ++p) {
        float v[kPiece] = {};
        if (live && columns[p] < args.cols) load_vector(x + columns[p], v);
#pragma unroll
        for (int k = 0; k < kPiece; ++k) {
#pragma unroll
          for (int m = 0; m < kWarpMixes; ++m)
            sums[r * kValues + m] = __fmaf_rn(weights[m][p][k], v[k], sums[r * kValues + m]);
          sums[r * kValues + kWarpMixes] = __fmaf_rn(v[k], v[k], sums[r * kValues + kWarpMixes]);
        }
      }
    }
    const float sum = transposed_sum(sums);
    const int row = first + lane / kValues;
    const int value = lane % kValues;
    if (row >= args.rows) continue;
    float* part = args.parts + (static_cast<int64_t>(row) * gridDim.x + blockIdx.x) * kSums;
    if (value < kWarpMixes) {
      part[warp * kWarpMixes + value] = sum;
    } else if (warp == 0) {
      part[kMixes] = sum;
    }
  }
}

struct CoefficientArgs {
  const float* parts;
  int blocks;  // parts of a row
  int cols;
  const float* base;   // [kMixes]
  const float* scale;  // [3]
  float norm_eps;
  float eps;
  int iterations;
  float* pre;
  float* post;
  float* comb;
};

__device__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Sum over the line of four lanes that differ in the bits `a` and `b`.
__device__ float line_sum(float x, int a, int b) {
  x += __shfl_xor_sync(0xFFFFFFFFu, x, a);
  return x + __shfl_xor_sync(0xFFFFFFFFu, x, b);
}
__device__ float line_max(float x, int a, int b) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, a));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, b));
}

// Lane 4 i + j holds comb[i][j] of the warp's row (the upper half of the warp repeats the lower).
__device__ float sinkhorn(float c, int iterations, float eps) {
  c = expf(c - line_max(c, 1, 2));
  c = c / line_sum(c, 1, 2) + eps;
  c /= line_sum(c, 4, 8) + eps;
  for (int iteration = 1; iteration < iterations; ++iteration) {
    c /= line_sum(c, 1, 2) + eps;
    c /= line_sum(c, 4, 8) + eps;
  }
  return c;
}

// A block a row: warps add the parts, the first makes coefficients of the sums.
__global__ void __launch_bounds__(kThreads) coefficients_kernel(CoefficientArgs args) {
  __shared__ float sums[kSums];
  grid_wait();
  grid_launch();
  const int64_t row = blockIdx.x;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float* parts = args.parts + row * args.blocks * kSums;
  for (int i = warp; i < kSums; i += kWarps) {
    float sum = 0;
    for (int block = lane; block < args.blocks; block += kWarp) sum += parts[block * kSums + i];
    sum = warp_sum(sum);
    if (lane == 0) sums[i] = sum;
  }
  __syncthreads();
  if (warp != 0) return;
  const float factor = rms_factor(sums[kMixes], args.cols, args.norm_eps);
  const auto mix = [&](int i, int kind) {
    return sums[i] * factor * args.scale[kind] + args.base[i];
  };
  if (lane < kCopies) {
    args.pre[row * kCopies + lane] = sigmoid(mix(lane, 0)) + args.eps;
    args.post[row * kCopies + lane] = 2.0f * sigmoid(mix(kCopies + lane, 1));
  }
  constexpr int kComb = kCopies * kCopies;
  const float c = sinkhorn(mix(2 * kCopies + lane % kComb, 2), args.iterations, args.eps);
  if (lane < kComb) args.comb[row * kComb + lane] = c;
}

}  // namespace

void hc_mixes(const Launch& launch, Tensor x, const HcWeights& weights, HcMix mix) {
  if (x.rows == 0) return;
  if (mix.pre.cols != kCopies) refuse("hc_mult", mix.pre.cols, "4 residual copies");
  if (x.cols % kPiece != 0) refuse("the width of the stream", x.cols, "multiples of 4");
  const auto rows = static_cast<int>(x.rows);
  const auto cols = static_cast<int>(x.cols);
  const int blocks = (cols + kColumns - 1) / kColumns;
  auto* parts = reinterpret_cast<float*>(launch.scratch.get(
      static_cast<size_t>(rows) * static_cast<size_t>(blocks) * kSums * sizeof(float)));
  // Enough blocks to fill the device; each keeps its weights for all its groups of rows.
  const int groups = (rows + kRows - 1) / kRows;
  const int groups_at_once = std::max(1, 4 * launch.multiprocessors / blocks);
  const dim3 grid(static_cast<unsigned>(blocks),
                  static_cast<unsigned>(std::min(groups, groups_at_once)));
  with_act(launch.numerics, [&](auto* type) {
    using T = ActOf<decltype(type)>;
    start(parts_kernel<T>, grid, dim3(kThreads), 0, launch.stream,
          PartArgs<T>{.x = static_cast<const T*>(x.data),
                      .fn = weights.fn,
                      .rows = rows,
                      .cols = cols,
                      .parts = parts});
  });
  start(coefficients_kernel, dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0, launch.stream,
        CoefficientArgs{.parts = parts,
                        .blocks = blocks,
                        .cols = cols,
                        .base = weights.base,
                        .scale = weights.scale,
                        .norm_eps = launch.config.norm_eps,
                        .eps = launch.config.hc_eps,
                        .iterations = launch.config.hc_sinkhorn_iters,
                        .pre = mix.pre.f32(),
                        .post = mix.post.f32(),
                        .comb = mix.comb.f32()});
}

}  // namespace peregrine::cuda
