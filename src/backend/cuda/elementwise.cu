#include "backend/cuda/common.cuh"
#include "backend/cuda/elementwise.h"
namespace peregrine::cuda {
namespace {
template <typename T>
__global__ void scale_kernel(T* x, int64_t n, float factor) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) store_act(x + i, widen(x[i]) * factor);
}
}  // namespace
void scale(const Launch& launch, Tensor x, float factor) {
  with_act(launch.numerics, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const int64_t n = x.rows * x.cols;
    scale_kernel<<<static_cast<unsigned>((n + 255) / 256), 256, 0, launch.stream>>>(
        static_cast<T*>(x.data), n, factor);
  });
  check_launch("scale");
}
}  // namespace peregrine::cuda
