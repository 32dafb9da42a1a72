// Embedding, moves of whole rows, and the elementwise operations.
//
// Bytes: every element is read and written once; embed reads a table row once and writes it
// `copies` times.
#include "backend/cuda/act_vector.cuh"
#include "backend/cuda/elementwise.h"
#include "backend/cuda/gated.cuh"
#include "backend/cuda/pdl.cuh"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"

namespace peregrine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kScaleBlock = 32;  // inputs that share a weight scale

unsigned blocks_for(int64_t n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); }

__device__ int64_t thread_index() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

// Element `i` of row `out`, with its scale.
__device__ float weight_element(const Weight& w, int64_t out, int64_t i) {
  const int64_t at = out * w.in + i;
  const int64_t scale_column = i / kScaleBlock;
  const int64_t scale_columns = (w.in + kScaleBlock - 1) / kScaleBlock;
  switch (w.format) {
    case WeightFormat::kF32:
      return static_cast<const float*>(w.data)[at];
    case WeightFormat::kBF16:
      return bf16_value(static_cast<const uint16_t*>(w.data)[at]);
    case WeightFormat::kF8:
      return e4m3_value(static_cast<const uint8_t*>(w.data)[at]) *
             e8m0_value(w.scale[out / kScaleBlock * scale_columns + scale_column]);
    case WeightFormat::kF4:
      return e2m1_value(e2m1_unpack(static_cast<const uint8_t*>(w.data), at)) *
             e8m0_value(w.scale[out * scale_columns + scale_column]);
  }
  return 0;
}

template <typename T>
__global__ void embed_kernel(Weight table, const int32_t* tokens, int copies, T* x) {
  grid_wait();
  grid_launch();
  const int64_t row = blockIdx.y;
  const int64_t i = thread_index();
  if (i >= table.in) return;
  const float value = weight_element(table, tokens[row], i);
  for (int copy = 0; copy < copies; ++copy)
    store_act(x + (row * copies + copy) * table.in + i, value);
}

// Moves rows as `units` pieces of type Unit.
template <typename Unit>
__global__ void gather_kernel(const Unit* src, const int32_t* indices, int64_t units, Unit* dst) {
  grid_wait();
  grid_launch();
  const int64_t row = blockIdx.y;
  const int64_t i = thread_index();
  if (i < units) dst[row * units + i] = src[indices[row] * units + i];
}

template <typename Unit>
void gather_units(const Launch& launch, Tensor src, const int32_t* indices, Tensor dst,
                  size_t row_bytes) {
  const auto units = static_cast<int64_t>(row_bytes / sizeof(Unit));
  const dim3 grid(blocks_for(units), static_cast<unsigned>(dst.rows));
  start(gather_kernel<Unit>, grid, dim3(kThreads), 0, launch.stream,
        static_cast<const Unit*>(src.data), indices, units, static_cast<Unit*>(dst.data));
}

template <typename T, int kN>
__global__ void scale_kernel(T* x, int64_t vectors, float factor) {
  grid_wait();
  grid_launch();
  const int64_t i = thread_index();
  if (i >= vectors) return;
  float v[kN];
  load_vector(x + i * kN, v);
#pragma unroll
  for (int k = 0; k < kN; ++k) v[k] *= factor;
  store_vector(x + i * kN, v);
}

template <typename T, int kN>
__global__ void add_kernel(const T* x, T* y, int64_t vectors) {
  grid_wait();
  grid_launch();
  const int64_t i = thread_index();
  if (i >= vectors) return;
  float a[kN], b[kN];
  load_vector(x + i * kN, a);
  load_vector(y + i * kN, b);
#pragma unroll
  for (int k = 0; k < kN; ++k) b[k] += a[k];
  store_vector(y + i * kN, b);
}

template <typename T, int kN>
__global__ void gate_kernel(T* a, const T* b, int64_t vectors, float limit) {
  grid_wait();
  grid_launch();
  const int64_t i = thread_index();
  if (i >= vectors) return;
  float x[kN], y[kN];
  load_vector(a + i * kN, x);
  load_vector(b + i * kN, y);
#pragma unroll
  for (int k = 0; k < kN; ++k) x[k] = gated(x[k], y[k], 1.0f, limit);
  store_vector(a + i * kN, x);
}

}  // namespace

void embed(const Launch& launch, const Weight& table, const int32_t* tokens, int copies, Tensor x) {
  if (x.rows == 0) return;
  const dim3 grid(blocks_for(table.in), static_cast<unsigned>(x.rows));
  with_act(launch.numerics, [&](auto* type) {
    using T = ActOf<decltype(type)>;
    start(embed_kernel<T>, grid, dim3(kThreads), 0, launch.stream, table, tokens, copies,
          static_cast<T*>(x.data));
  });
}

void gather_rows(const Launch& launch, Tensor src, const int32_t* indices, Tensor dst) {
  if (dst.rows == 0) return;
  const size_t row_bytes = static_cast<size_t>(src.cols) * elem_bytes(src.elem);
  if (row_bytes % sizeof(uint4) == 0) {
    gather_units<uint4>(launch, src, indices, dst, row_bytes);
  } else if (row_bytes % sizeof(uint32_t) == 0) {
    gather_units<uint32_t>(launch, src, indices, dst, row_bytes);
  } else {
    gather_units<uint8_t>(launch, src, indices, dst, row_bytes);
  }
}

void scale(const Launch& launch, Tensor x, float factor) {
  const int64_t n = x.rows * x.cols;
  if (n == 0) return;
  with_act(launch.numerics, [&](auto* type) {
    with_vector(n, [&](auto vector) {
      using T = ActOf<decltype(type)>;
      start(scale_kernel<T, vector>, dim3(blocks_for(n / vector)), dim3(kThreads), 0, launch.stream,
            static_cast<T*>(x.data), n / vector, factor);
    });
  });
}

void add(const Launch& launch, Tensor x, Tensor y) {
  const int64_t n = x.rows * x.cols;
  if (n == 0) return;
  with_act(x.elem == Elem::kBF16 ? Numerics::kBF16 : Numerics::kF32, [&](auto* type) {
    with_vector(n, [&](auto vector) {
      using T = ActOf<decltype(type)>;
      start(add_kernel<T, vector>, dim3(blocks_for(n / vector)), dim3(kThreads), 0, launch.stream,
            static_cast<const T*>(x.data), static_cast<T*>(y.data), n / vector);
    });
  });
}

void gate(const Launch& launch, Tensor a, Tensor b) {
  const int64_t n = a.rows * a.cols;
  if (n == 0) return;
  with_act(launch.numerics, [&](auto* type) {
    with_vector(n, [&](auto vector) {
      using T = ActOf<decltype(type)>;
      start(gate_kernel<T, vector>, dim3(blocks_for(n / vector)), dim3(kThreads), 0, launch.stream,
            static_cast<T*>(a.data), static_cast<const T*>(b.data), n / vector,
            launch.config.swiglu_limit);
    });
  });
}

}  // namespace peregrine::cuda
