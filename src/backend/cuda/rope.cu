// Rotary embedding. The angles of a row are the same for all its heads, so a block computes sines
// and cosines once for its heads, in double precision of the f32 angle, and keeps them in shared
// memory.
//
// Bytes: rope_dim elements of every head, read and written once.
#include "backend/cuda/common.cuh"
#include "backend/cuda/pdl.cuh"
#include "backend/cuda/refuse.h"
#include "backend/cuda/rope.h"

namespace peregrine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxPairs = 512;
constexpr int kBlockHeads = 16;

template <typename T>
struct RopeArgs {
  T* x;  // [rows, heads * head_dim]
  int heads;
  int head_dim;
  const int32_t* positions;
  const float* frequencies;  // [pairs]
  int pairs;
  int position_step;
  bool inverse;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) rope_kernel(RopeArgs<T> args) {
  __shared__ float cosines[kMaxPairs], sines[kMaxPairs];
  grid_wait();
  grid_launch();
  const int row = static_cast<int>(blockIdx.x);
  const int position = args.positions[row] / args.position_step * args.position_step;
  for (int i = static_cast<int>(threadIdx.x); i < args.pairs; i += kThreads) {
    const float angle = static_cast<float>(position) * args.frequencies[i];
    double s, c;
    sincos(static_cast<double>(angle), &s, &c);
    cosines[i] = static_cast<float>(c);
    sines[i] = args.inverse ? -static_cast<float>(s) : static_cast<float>(s);
  }
  __syncthreads();
  const int64_t width = static_cast<int64_t>(args.heads) * args.head_dim;
  const int first = static_cast<int>(blockIdx.y) * kBlockHeads;
  const int heads = min(kBlockHeads, args.heads - first);
  for (int at = static_cast<int>(threadIdx.x); at < heads * args.pairs; at += kThreads) {
    const int head = first + at / args.pairs;
    const int i = at % args.pairs;
    T* pair = args.x + row * width + (head + 1) * args.head_dim - 2 * args.pairs + 2 * i;
    const float a = widen(pair[0]);
    const float b = widen(pair[1]);
    store_act(pair, a * cosines[i] - b * sines[i]);
    store_act(pair + 1, a * sines[i] + b * cosines[i]);
  }
}

}  // namespace

void rope(const Launch& launch, Tensor x, int heads, const StepRows& step,
          const RopeParams& params) {
  if (x.rows == 0) return;
  const int pairs = params.rope_dim / 2;
  if (pairs > kMaxPairs)
    refuse("the number of rotated dimensions of a head", params.rope_dim, "at most 1024");
  const dim3 grid(static_cast<unsigned>(x.rows),
                  static_cast<unsigned>((heads + kBlockHeads - 1) / kBlockHeads));
  with_act(launch.numerics, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    start(rope_kernel<T>, grid, dim3(kThreads), 0, launch.stream,
          RopeArgs<T>{.x = static_cast<T*>(x.data),
                      .heads = heads,
                      .head_dim = static_cast<int>(x.cols) / heads,
                      .positions = step.pos,
                      .frequencies = params.frequencies,
                      .pairs = pairs,
                      .position_step = params.position_step,
                      .inverse = params.inverse});
  });
}

}  // namespace peregrine::cuda
