#include "backend/cuda/experts_plain.h"

#include <algorithm>

#include "backend/cuda/gated.cuh"
#include "backend/cuda/weight_value.cuh"

namespace peregrine::cuda {
namespace {

constexpr int kWarps = 8;

struct Pairs {
  const Expert* table;
  const int32_t* ids;
  const float* weights;
  int active, slots, experts;

  __device__ int row(int pair) const { return pair / slots; }
  __device__ bool shared(int pair) const { return pair % slots == active; }
  __device__ const Expert& expert(int pair) const {
    return table[shared(pair) ? experts : ids[row(pair) * active + pair % slots]];
  }
  __device__ float weight(int pair) const {
    return shared(pair) ? 1.0f : weights[row(pair) * active + pair % slots];
  }
};

// A warp an inner unit and pair.
template <typename T>
__global__ void gate_up_kernel(Pairs pairs, const T* u, int64_t dim, int64_t inner, float limit,
                               T* gated_values) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const int pair = static_cast<int>(blockIdx.y);
  const Expert& expert = pairs.expert(pair);
  if (i >= expert.w1.out) return;
  const T* x = u + pairs.row(pair) * dim;
  const float a = round_act<T>(warp_dot(x, expert.w1, i, 0, dim));
  const float b = round_act<T>(warp_dot(x, expert.w3, i, 0, dim));
  if (threadIdx.x % kWarp == 0)
    store_act(gated_values + pair * inner + i, gated(a, b, pairs.weight(pair), limit));
}

// A warp an output and row: the row's experts in ascending order, the shared one last.
template <typename T>
__global__ void down_kernel(Pairs pairs, const T* gated_values, int64_t dim, int64_t inner,
                            T* out) {
  const int64_t o = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (o >= dim) return;
  const int row = static_cast<int>(blockIdx.y);
  float sum = 0;
  for (int slot = 0; slot < pairs.slots; ++slot) {
    const int pair = row * pairs.slots + slot;
    const Expert& expert = pairs.expert(pair);
    sum += round_act<T>(warp_dot(gated_values + pair * inner, expert.w2, o, 0, expert.w2.in));
  }
  if (threadIdx.x % kWarp == 0) store_act(out + row * dim + o, sum);
}

}  // namespace

void experts_plain(const Launch& launch, const ExpertsArgs& args, const Expert* table) {
  const auto active = static_cast<int>(args.ids.cols);
  const Pairs pairs{table,
                    args.ids.i32(),
                    args.weights.f32(),
                    active,
                    active + (args.shared != nullptr ? 1 : 0),
                    static_cast<int>(args.routed.size())};
  const int64_t dim = args.u.cols;
  const int64_t inner =
      std::max(args.routed.front().w1.out, args.shared != nullptr ? args.shared->w1.out : 0);
  const auto rows = static_cast<unsigned>(args.u.rows);
  const auto blocks = [](int64_t n) { return static_cast<unsigned>((n + kWarps - 1) / kWarps); };
  with_act(launch.numerics, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    auto* values = reinterpret_cast<T*>(
        launch.scratch.get(static_cast<size_t>(args.u.rows * pairs.slots * inner) * sizeof(T)));
    gate_up_kernel<<<dim3(blocks(inner), rows * static_cast<unsigned>(pairs.slots)), kWarps * kWarp,
                     0, launch.stream>>>(pairs, static_cast<const T*>(args.u.data), dim, inner,
                                         launch.config.swiglu_limit, values);
    check_launch("gate_up_kernel");
    down_kernel<<<dim3(blocks(dim), rows), kWarps * kWarp, 0, launch.stream>>>(
        pairs, values, dim, inner, static_cast<T*>(args.out.data));
    check_launch("down_kernel");
  });
}

}  // namespace peregrine::cuda
