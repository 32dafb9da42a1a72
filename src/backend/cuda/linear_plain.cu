#include "backend/cuda/common.cuh"
#include "backend/cuda/linear.h"
#include "backend/cuda/linear_kernels.h"
#include "backend/cuda/weight_value.cuh"

namespace peregrine::cuda {
namespace {

constexpr int kWarps = 8;

// A warp an output and row.
template <typename T>
__global__ void plain_kernel(const T* x, int64_t x_cols, Weight w, int64_t group_out, Tensor y) {
  const int64_t out = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const int64_t row = blockIdx.y;
  if (out >= w.out) return;
  const float sum = warp_dot(x + row * x_cols + out / group_out * w.in, w, out, 0, w.in);
  if (threadIdx.x % kWarp != 0) return;
  if (y.elem == Elem::kBF16) {
    static_cast<Bf16*>(y.data)[row * w.out + out] = bf16_bits(sum);
  } else {
    static_cast<float*>(y.data)[row * w.out + out] = sum;
  }
}

template <typename T>
__global__ void confidence_kernel(const T* x, int64_t x_cols, const T* e, int64_t e_cols,
                                  Weight proj, float* out) {
  const int64_t row = blockIdx.x;
  const float from_x = warp_dot(x + row * x_cols, proj, 0, 0, x_cols);
  const float from_e = warp_dot(e + row * e_cols, proj, 0, x_cols, x_cols + e_cols);
  if (threadIdx.x == 0) out[row] = from_x + from_e;
}

}  // namespace

void linear_plain(const Launch& launch, Tensor x, const Weight& w, int groups, Tensor y) {
  const dim3 grid(static_cast<unsigned>((w.out + kWarps - 1) / kWarps),
                  static_cast<unsigned>(x.rows));
  with_act(launch.numerics, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    plain_kernel<<<grid, kWarps * kWarp, 0, launch.stream>>>(static_cast<const T*>(x.data), x.cols,
                                                             w, w.out / groups, y);
  });
  check_launch("plain_kernel");
}

void confidence(const Launch& launch, Tensor x, Tensor e, const Weight& proj, Tensor out) {
  if (x.rows == 0) return;
  with_act(launch.numerics, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    confidence_kernel<<<static_cast<unsigned>(x.rows), kWarp, 0, launch.stream>>>(
        static_cast<const T*>(x.data), x.cols, static_cast<const T*>(e.data), e.cols, proj,
        out.f32());
  });
  check_launch("confidence_kernel");
}

}  // namespace peregrine::cuda
