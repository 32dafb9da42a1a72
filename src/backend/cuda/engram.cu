// The n-gram memory: table rows, and the gated addition to the stream (spec: engram.md section 5).
//
// Bytes: engram_gather reads 33 bytes per 32 values, over the bus where the table lies in host
// memory, a row in one request per warp; engram_mix reads keys, value and stream and writes the
// stream.
#include <cmath>

#include "backend/cuda/act_vector.cuh"
#include "backend/cuda/engram.h"
#include "backend/cuda/norm.cuh"
#include "backend/cuda/pdl.cuh"
#include "formats/e4m3.h"
#include "formats/e8m0.h"

namespace peregrine::cuda {
namespace {

constexpr int kGatherThreads = 256;
constexpr int kGatherWarps = kGatherThreads / kWarp;
constexpr int kTableScaleBlock = 32;  // values of a table row that share a scale
constexpr int kMixThreads = 512;
constexpr float kGateFloor = 1e-6f;

template <typename T>
struct GatherArgs {
  EngramTable table;
  const int64_t* row_ids;  // [pieces]
  int64_t pieces;          // step rows * columns: out is [pieces, width]
  T* out;
};

// A warp a table row, eight values a lane. A row number outside the table is never followed: its
// values are zero.
template <typename T>
__global__ void __launch_bounds__(kGatherThreads) gather_kernel(GatherArgs<T> args) {
  grid_wait();
  grid_launch();
  const int64_t piece =
      static_cast<int64_t>(blockIdx.x) * kGatherWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (piece >= args.pieces) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int width = args.table.width;
  const int64_t row = args.row_ids[piece];
  const bool inside = row >= 0 && row < args.table.rows;
  for (int i = lane * kVector; i < width; i += kWarp * kVector) {
    float v[kVector] = {};
    if (inside) {
      const uint2 codes = *reinterpret_cast<const uint2*>(args.table.codes + row * width + i);
      const float scale =
          e8m0_value(args.table.scales[row * (width / kTableScaleBlock) + i / kTableScaleBlock]);
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        const uint32_t word = k < 4 ? codes.x : codes.y;
        v[k] = e4m3_value(static_cast<uint8_t>(word >> (8 * (k % 4)))) * scale;
      }
    }
    store_vector(args.out + piece * width + i, v);
  }
}

// sigmoid(sign(t) * sqrt(max(|t|, 1e-6))); the sign is the sign bit, so -0 is negative.
__device__ float gate_of(float t) {
  const float root = sqrtf(fmaxf(fabsf(t), kGateFloor));
  return 1.0f / (1.0f + expf(signbit(t) ? root : -root));
}

template <typename T>
struct MixArgs {
  T* x;         // [rows, copies * dim]
  const T* kv;  // [rows, (copies + 1) * dim]
  const float* gain;
  const uint8_t* is_image;
  int dim;
  float eps;
  float width_factor;  // dim^-0.5
};

// A block a copy of a row.
template <typename T, int kN>
__global__ void __launch_bounds__(kMixThreads) mix_kernel(MixArgs<T> args) {
  grid_wait();
  grid_launch();
  const int copies = static_cast<int>(gridDim.x);
  const int copy = static_cast<int>(blockIdx.x);
  const int64_t row = blockIdx.y;
  if (args.is_image != nullptr && args.is_image[row] != 0) return;  // gate 0
  T* h = args.x + (row * copies + copy) * args.dim;
  const T* key = args.kv + (row * (copies + 1) + copy) * args.dim;
  const T* value = args.kv + (row * (copies + 1) + copies) * args.dim;
  const float* gain = args.gain + static_cast<int64_t>(copy) * args.dim;

  float product = 0, stream_squares = 0, key_squares = 0;
  const int first = static_cast<int>(threadIdx.x) * kN;
  for (int i = first; i < args.dim; i += kMixThreads * kN) {
    float hs[kN], keys[kN], gains[kN];
    load_vector(h + i, hs);
    load_vector(key + i, keys);
    load_vector(gain + i, gains);
#pragma unroll
    for (int k = 0; k < kN; ++k) product = __fmaf_rn(hs[k] * gains[k], keys[k], product);
    add_squares(hs, stream_squares);
    add_squares(keys, key_squares);
  }
  product = block_sum<kMixThreads>(product);
  const float norms = rms_factor(block_sum<kMixThreads>(stream_squares), args.dim, args.eps) *
                      rms_factor(block_sum<kMixThreads>(key_squares), args.dim, args.eps);
  const float gate = gate_of(product * norms * args.width_factor);
  for (int i = first; i < args.dim; i += kMixThreads * kN) {
    float hs[kN], values[kN];
    load_vector(h + i, hs);
    load_vector(value + i, values);
#pragma unroll
    for (int k = 0; k < kN; ++k) hs[k] += gate * values[k];
    store_vector(h + i, hs);
  }
}

}  // namespace

void engram_gather(const Launch& launch, const EngramTable& table, const int64_t* row_ids,
                   int columns, Tensor out) {
  const int64_t pieces = out.rows * columns;
  if (pieces == 0) return;
  const auto blocks = static_cast<unsigned>((pieces + kGatherWarps - 1) / kGatherWarps);
  with_act(launch.numerics, [&](auto* type) {
    using T = ActOf<decltype(type)>;
    start(gather_kernel<T>, dim3(blocks), dim3(kGatherThreads), 0, launch.stream,
          GatherArgs<T>{.table = table,
                        .row_ids = row_ids,
                        .pieces = pieces,
                        .out = static_cast<T*>(out.data)});
  });
}

void engram_mix(const Launch& launch, const EngramMixArgs& args) {
  if (args.x.rows == 0) return;
  const int64_t dim = args.kv.cols - args.x.cols;
  const dim3 grid(static_cast<unsigned>(args.x.cols / dim), static_cast<unsigned>(args.x.rows));
  with_act(launch.numerics, [&](auto* type) {
    with_vector(dim, [&](auto vector) {
      using T = ActOf<decltype(type)>;
      start(mix_kernel<T, vector>, grid, dim3(kMixThreads), 0, launch.stream,
            MixArgs<T>{
                .x = static_cast<T*>(args.x.data),
                .kv = static_cast<const T*>(args.kv.data),
                .gain = args.gain,
                .is_image = args.is_image,
                .dim = static_cast<int>(dim),
                .eps = launch.config.norm_eps,
                .width_factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)))});
    });
  });
}

}  // namespace peregrine::cuda
