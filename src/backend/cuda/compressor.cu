// Pooled pairs, compressed rows and index keys (spec: model.md 5.5). What is live follows from
// positions alone: group j of a source completes at the position p with p / ratio == j and
// (p + 1) % ratio == 0.
//
// Bytes: compress_pairs reads a and g of a row and of the row before, and writes the latent or a
// tail; the packers read an act row and write its packed bytes.
#include "backend/cuda/act_vector.cuh"
#include "backend/cuda/compressor.h"
#include "backend/cuda/pdl.cuh"
#include "formats/quantize.h"

namespace peregrine::cuda {
namespace {

constexpr int kThreads = 128;

template <typename T>
struct PairArgs {
  const float* a;  // [rows, dim]
  const float* g;
  T* latent;  // [rows, dim]
  int dim;
  int source;
  const int32_t* pos;
  const int32_t* slot;
  const int32_t* first_row;
  const int32_t* end_row;
  KvView kv;
};

// Softmax of two gates applied to two values.
__device__ float pool(float a0, float g0, float a1, float g1) {
  const float largest = fmaxf(g0, g1);
  const float e0 = expf(g0 - largest);
  const float e1 = expf(g1 - largest);
  const float sum = e0 + e1;
  return e0 / sum * a0 + e1 / sum * a1;
}

template <typename T>
__device__ void store_tail(const PairArgs<T>& args, int row, int position, int i) {
  float* tail = args.kv.tail(args.slot[row], args.source, position);
  const int64_t at = static_cast<int64_t>(row) * args.dim + i;
  tail[i] = args.a[at];
  tail[args.dim + i] = args.g[at];
}

// Rows run at once, but tails are few: an even position is stored only when no later one of the
// segment takes its place, and the one that takes the place of the tail which the segment's first
// row still reads is stored by that row's threads, after their reading.
template <typename T>
__global__ void compress_pairs_kernel(PairArgs<T> args) {
  grid_wait();
  grid_launch();
  const int row = static_cast<int>(blockIdx.y);
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= args.dim) return;
  const int position = args.pos[row];
  const int first = args.first_row[row];
  const int first_position = position - (row - first);
  const int last_position = position + args.end_row[row] - 1 - row;
  const int period = 2 * args.kv.tail_rows;  // positions until a tail's place returns
  const int64_t at = static_cast<int64_t>(row) * args.dim + i;

  if (position % 2 == 0) {
    store_act(args.latent + at, 0.0f);
    const bool last_of_place = position + period > last_position;
    const bool read_by_first =
        first_position % 2 == 1 && (position - (first_position - 1)) % period == 0;
    if (last_of_place && !read_by_first) store_tail(args, row, position, i);
    return;
  }
  float a_even, g_even;
  if (row > first) {
    a_even = args.a[at - args.dim];
    g_even = args.g[at - args.dim];
  } else {
    const float* tail = args.kv.tail(args.slot[row], args.source, position - 1);
    a_even = tail[i];
    g_even = tail[args.dim + i];
  }
  store_act(args.latent + at, pool(a_even, g_even, args.a[at], args.g[at]));
  if (row == first) {
    const int later = (last_position - (position - 1)) / period * period;
    if (later > 0) store_tail(args, row + later - 1, position - 1 + later, i);
  }
}

template <typename T>
struct PackArgs {
  const T* values;  // [rows, dim]
  int dim;
  int source;
  int ratio;
  const int32_t* pos;
  const int32_t* slot;
  const uint8_t* writes_kv;
  KvView kv;
};

// The two formats of packed rows: values a scale covers, the scale's byte, and its meaning.
struct MainRow {
  static constexpr int kBlock = kFp4E4m3Block;
  static __device__ uint8_t scale_byte(float amax) {
    return e4m3_bits(fmaxf(amax, formats_detail::kFp4E4m3Minimum) / 6.0f);
  }
  static __device__ float scale_value(uint8_t byte) { return e4m3_value(byte); }
  static __device__ uint8_t* row(const KvView& kv, int slot, int source, int64_t group) {
    return kv.main_row(slot, source, group);
  }
};
struct IndexRow {
  static constexpr int kBlock = kFp4E8m0Block;
  static __device__ uint8_t scale_byte(float amax) {
    return e8m0_ceil_scale(fmaxf(amax, formats_detail::kFp4E8m0Minimum), kInverse6);
  }
  static __device__ float scale_value(uint8_t byte) { return e8m0_value(byte); }
  static __device__ uint8_t* row(const KvView& kv, int slot, int source, int64_t group) {
    return kv.index_row(slot, source, group);
  }
};

// A thread an element; the threads of a block of values find its largest by exchange. dim is a
// multiple of 32, so a warp is inside the row or outside it as a whole.
template <typename Row, typename T>
__global__ void pack_rows_kernel(PackArgs<T> args) {
  grid_wait();
  grid_launch();
  const int row = static_cast<int>(blockIdx.y);
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int position = args.pos[row];
  if (i >= args.dim || args.writes_kv[row] == 0 || (position + 1) % args.ratio != 0) return;
  uint8_t* packed = Row::row(args.kv, args.slot[row], args.source, position / args.ratio);

  const float value = widen(args.values[static_cast<int64_t>(row) * args.dim + i]);
  float amax = fabsf(value);
  for (int distance = Row::kBlock / 2; distance > 0; distance /= 2)
    amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, distance));
  const uint8_t byte = Row::scale_byte(amax);
  const float clamped = formats_detail::clamp(value / Row::scale_value(byte), kE2m1Max);
  const unsigned code = e2m1_code(clamped);
  const unsigned next = __shfl_down_sync(0xFFFFFFFFu, code, 1);
  if (i % 2 == 0) packed[i / 2] = e2m1_pack(static_cast<uint8_t>(code), static_cast<uint8_t>(next));
  if (i % Row::kBlock == 0) packed[args.dim / 2 + i / Row::kBlock] = byte;
}

template <typename Row>
void pack_rows(const Launch& launch, Tensor values, const StepRows& step, int source, int ratio,
               const KvView& kv) {
  const auto dim = static_cast<int>(values.cols);
  const dim3 grid(static_cast<unsigned>((dim + kThreads - 1) / kThreads),
                  static_cast<unsigned>(step.rows));
  with_act(launch.numerics, [&](auto* type) {
    using T = ActOf<decltype(type)>;
    start(pack_rows_kernel<Row, T>, grid, dim3(kThreads), 0, launch.stream,
          PackArgs<T>{.values = static_cast<const T*>(values.data),
                      .dim = dim,
                      .source = source,
                      .ratio = ratio,
                      .pos = step.pos,
                      .slot = step.slot,
                      .writes_kv = step.writes_kv,
                      .kv = kv});
  });
}

}  // namespace

void compress_pairs(const Launch& launch, Tensor a, Tensor g, const StepRows& step, int source,
                    const KvView& kv, Tensor latent) {
  if (step.rows == 0) return;
  const auto dim = static_cast<int>(latent.cols);
  const dim3 grid(static_cast<unsigned>((dim + kThreads - 1) / kThreads),
                  static_cast<unsigned>(step.rows));
  with_act(launch.numerics, [&](auto* type) {
    using T = ActOf<decltype(type)>;
    start(compress_pairs_kernel<T>, grid, dim3(kThreads), 0, launch.stream,
          PairArgs<T>{.a = a.f32(),
                      .g = g.f32(),
                      .latent = static_cast<T*>(latent.data),
                      .dim = dim,
                      .source = source,
                      .pos = step.pos,
                      .slot = step.slot,
                      .first_row = step.first_row,
                      .end_row = step.end_row,
                      .kv = kv});
  });
}

void store_compressed(const Launch& launch, Tensor latent, const StepRows& step, int source,
                      int ratio, const KvView& kv) {
  if (step.rows == 0) return;
  pack_rows<MainRow>(launch, latent, step, source, ratio, kv);
}

void store_index_keys(const Launch& launch, Tensor keys, const StepRows& step, int source,
                      int ratio, const KvView& kv) {
  if (step.rows == 0) return;
  pack_rows<IndexRow>(launch, keys, step, source, ratio, kv);
}

}  // namespace peregrine::cuda
