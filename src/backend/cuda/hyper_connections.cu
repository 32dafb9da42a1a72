// Hyper-connections: collapse, expand and taps, each one pass over the stream. The coefficients are
// in hc_mixes.cu.
//
// Bytes a row of four copies: collapse reads them and writes one, expand reads five and writes
// four, a tap reads four and writes one.
#include "backend/cuda/act_vector.cuh"
#include "backend/cuda/hyper_connections.h"
#include "backend/cuda/norm.cuh"
#include "backend/cuda/pdl.cuh"
#include "backend/cuda/refuse.h"

namespace peregrine::cuda {
namespace {

constexpr int kCopies = 4;
constexpr int kThreads = 128;  // of the kernels without sums over a row

void require_copies(int64_t copies) {
  if (copies != kCopies) refuse("hc_mult", copies, "4 residual copies");
}

// v = sum over copies of factors[copy] * copy[i .. i + kN), in ascending order.
template <typename T, int kN>
__device__ void collapse(const T* copies, int dim, int i, const float* factors, float (&v)[kN]) {
#pragma unroll
  for (int k = 0; k < kN; ++k) v[k] = 0;
#pragma unroll
  for (int copy = 0; copy < kCopies; ++copy) {
    float part[kN];
    load_vector(copies + static_cast<int64_t>(copy) * dim + i, part);
#pragma unroll
    for (int k = 0; k < kN; ++k) v[k] += factors[copy] * part[k];
  }
}

template <typename T, int kN>
__global__ void __launch_bounds__(kThreads)
    collapse_kernel(const T* x, const float* pre, int dim, T* out) {
  grid_wait();
  grid_launch();
  const int64_t row = blockIdx.y;
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) * kN;
  if (i >= dim) return;
  float v[kN];
  collapse(x + row * kCopies * dim, dim, i, pre + row * kCopies, v);
  store_vector(out + row * dim + i, v);
}

// The norm is of the rounded collapse, which waits in `u` for the sum of its squares: every thread
// reads back what it wrote itself.
template <typename T, int kN, int kRowThreads>
__global__ void __launch_bounds__(kRowThreads)
    collapse_norm_kernel(const T* x, const float* pre, const float* norm, float eps, int dim,
                         T* u) {
  grid_wait();
  grid_launch();
  const int64_t row = blockIdx.x;
  T* out = u + row * dim;
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x) * kN; i < dim; i += kRowThreads * kN) {
    float v[kN];
    collapse(x + row * kCopies * dim, dim, i, pre + row * kCopies, v);
#pragma unroll
    for (int k = 0; k < kN; ++k) v[k] = round_act<T>(v[k]);
    add_squares(v, squares);
    store_vector(out + i, v);
  }
  const float factor = rms_factor(block_sum<kRowThreads>(squares), dim, eps);
  for (int i = static_cast<int>(threadIdx.x) * kN; i < dim; i += kRowThreads * kN) {
    float v[kN];
    load_vector(out + i, v);
    apply_norm(norm + i, factor, v);
    store_vector(out + i, v);
  }
}

template <typename T>
struct ExpandArgs {
  const T* v;         // [rows, dim]
  const float* post;  // [rows, copies]
  const float* comb;  // [rows, copies * copies], source-major
  T* x;               // [rows, copies * dim]
  int dim;
};

template <typename T, int kN>
__global__ void __launch_bounds__(kThreads) expand_kernel(ExpandArgs<T> args) {
  grid_wait();
  grid_launch();
  const int64_t row = blockIdx.y;
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) * kN;
  if (i >= args.dim) return;
  T* x = args.x + row * kCopies * args.dim;
  float before[kCopies][kN], v[kN];
#pragma unroll
  for (int copy = 0; copy < kCopies; ++copy)
    load_vector(x + static_cast<int64_t>(copy) * args.dim + i, before[copy]);
  load_vector(args.v + row * args.dim + i, v);
#pragma unroll
  for (int to = 0; to < kCopies; ++to) {
    float after[kN];
    const float post = args.post[row * kCopies + to];
#pragma unroll
    for (int k = 0; k < kN; ++k) after[k] = 0;
#pragma unroll
    for (int from = 0; from < kCopies; ++from) {
      const float weight = args.comb[(row * kCopies + from) * kCopies + to];
#pragma unroll
      for (int k = 0; k < kN; ++k) after[k] += weight * before[from][k];
    }
#pragma unroll
    for (int k = 0; k < kN; ++k) after[k] = post * v[k] + after[k];
    store_vector(x + static_cast<int64_t>(to) * args.dim + i, after);
  }
}

template <typename T, int kN>
__global__ void __launch_bounds__(kThreads)
    tap_kernel(const T* x, int dim, int64_t column, int64_t out_cols, T* out) {
  grid_wait();
  grid_launch();
  const int64_t row = blockIdx.y;
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) * kN;
  if (i >= dim) return;
  const float ones[kCopies] = {1, 1, 1, 1};
  float v[kN];
  collapse(x + row * kCopies * dim, dim, i, ones, v);
#pragma unroll
  for (int k = 0; k < kN; ++k) v[k] /= static_cast<float>(kCopies);
  store_vector(out + row * out_cols + column + i, v);
}

// Threads for every kN elements of rows of `dim` elements.
dim3 grid_of(int64_t dim, int vector, int64_t rows) {
  const int64_t per_block = int64_t{kThreads} * vector;
  return dim3(static_cast<unsigned>((dim + per_block - 1) / per_block),
              static_cast<unsigned>(rows));
}

}  // namespace

void hc_collapse_norm(const Launch& launch, Tensor x, Tensor pre, const float* norm, Tensor u) {
  if (x.rows == 0) return;
  require_copies(pre.cols);
  const auto dim = static_cast<int>(u.cols);
  with_act(launch.numerics, [&](auto* type) {
    with_vector(dim, [&](auto vector) {
      with_row_threads(dim, [&](auto threads) {
        using T = ActOf<decltype(type)>;
        start(collapse_norm_kernel<T, vector, threads>, dim3(static_cast<unsigned>(x.rows)),
              dim3(threads()), 0, launch.stream, static_cast<const T*>(x.data), pre.f32(), norm,
              launch.config.norm_eps, dim, static_cast<T*>(u.data));
      });
    });
  });
}

void hc_collapse(const Launch& launch, Tensor x, Tensor pre, Tensor out) {
  if (x.rows == 0) return;
  require_copies(pre.cols);
  with_act(launch.numerics, [&](auto* type) {
    with_vector(out.cols, [&](auto vector) {
      using T = ActOf<decltype(type)>;
      start(collapse_kernel<T, vector>, grid_of(out.cols, vector, x.rows), dim3(kThreads), 0,
            launch.stream, static_cast<const T*>(x.data), pre.f32(), static_cast<int>(out.cols),
            static_cast<T*>(out.data));
    });
  });
}

void hc_expand(const Launch& launch, Tensor v, Tensor post, Tensor comb, Tensor x) {
  if (x.rows == 0) return;
  require_copies(post.cols);
  with_act(launch.numerics, [&](auto* type) {
    with_vector(v.cols, [&](auto vector) {
      using T = ActOf<decltype(type)>;
      start(expand_kernel<T, vector>, grid_of(v.cols, vector, x.rows), dim3(kThreads), 0,
            launch.stream,
            ExpandArgs<T>{.v = static_cast<const T*>(v.data),
                          .post = post.f32(),
                          .comb = comb.f32(),
                          .x = static_cast<T*>(x.data),
                          .dim = static_cast<int>(v.cols)});
    });
  });
}

void hc_tap(const Launch& launch, Tensor x, int64_t column, Tensor out) {
  if (x.rows == 0) return;
  require_copies(launch.config.hc_mult);
  const int64_t dim = x.cols / kCopies;
  with_act(launch.numerics, [&](auto* type) {
    with_vector(dim, [&](auto vector) {
      using T = ActOf<decltype(type)>;
      start(tap_kernel<T, vector>, grid_of(dim, vector, x.rows), dim3(kThreads), 0, launch.stream,
            static_cast<const T*>(x.data), static_cast<int>(dim), column, out.cols,
            static_cast<T*>(out.data));
    });
  });
}

}  // namespace peregrine::cuda
