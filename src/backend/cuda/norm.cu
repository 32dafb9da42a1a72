// RMS norm: one block a row, two passes, the second over what the first brought near.
//
// Bytes: x once from memory (a second time from cache), y once.
#include "backend/cuda/act_vector.cuh"
#include "backend/cuda/norm.cuh"
#include "backend/cuda/norm.h"
#include "backend/cuda/pdl.cuh"

namespace peregrine::cuda {
namespace {

template <typename T, int kN, int kThreads>
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(const T* x, const float* norm, float eps, int cols, T* y) {
  grid_wait();
  grid_launch();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * cols;
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x) * kN; i < cols; i += kThreads * kN) {
    float v[kN];
    load_vector(x + row + i, v);
    add_squares(v, squares);
  }
  const float factor = rms_factor(block_sum<kThreads>(squares), cols, eps);
  for (int i = static_cast<int>(threadIdx.x) * kN; i < cols; i += kThreads * kN) {
    float v[kN];
    load_vector(x + row + i, v);
    apply_norm(norm + i, factor, v);
    store_vector(y + row + i, v);
  }
}

}  // namespace

void rms_norm(const Launch& launch, Tensor x, const float* norm, Tensor y) {
  if (x.rows == 0) return;
  const auto cols = static_cast<int>(x.cols);
  with_act(launch.numerics, [&](auto* type) {
    with_vector(cols, [&](auto vector) {
      with_row_threads(cols, [&](auto threads) {
        using T = ActOf<decltype(type)>;
        start(rms_norm_kernel<T, vector, threads>, dim3(static_cast<unsigned>(x.rows)),
              dim3(threads()), 0, launch.stream, static_cast<const T*>(x.data), norm,
              launch.config.norm_eps, cols, static_cast<T*>(y.data));
      });
    });
  });
}

}  // namespace peregrine::cuda
