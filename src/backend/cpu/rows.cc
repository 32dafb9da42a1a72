// Operations on single rows: norms, rotations and hyper-connections with SIMD, and those whose cost
// is small, which are the reference's over ranges of rows. Rows are split over the threads.
#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/reference/hyper_connections.h"

namespace peregrine {
namespace {

// Rows of x from `begin`, as a parallel loop over single rows hands them out.
Tensor one(Tensor x, int64_t row) { return x.slice(row, 1); }

float rms_factor(const cpu::VectorKernel& kernel, const float* x, int64_t n, float eps) {
  return 1.0f / std::sqrt(kernel.sum_squares(x, n) / static_cast<float>(n) + eps);
}

}  // namespace

void CpuBackend::rms_norm(Tensor x, const float* norm, Tensor y) {
  pool_.parallel_for(x.rows, [&](int64_t r) {
    const float* in = x.f32() + r * x.cols;
    const float factor = rms_factor(kernels_.vector, in, x.cols, config().norm_eps);
    kernels_.vector.scale_by(in, norm, factor, x.cols, rounds(), y.f32() + r * x.cols);
  });
}

// The products run as one linear over all rows; the rest is a few numbers a row.
void CpuBackend::hc_mixes(Tensor x, const HcWeights& weights, HcMix mix) {
  const int n = static_cast<int>(mix.pre.cols);
  const int outputs = (2 + n) * n;
  const reference::HcShape shape{
      .copies = n, .sinkhorn_iterations = config().hc_sinkhorn_iters, .eps = config().hc_eps};
  const Weight fn{.format = WeightFormat::kF32,
                  .out = outputs,
                  .in = x.cols,
                  .data = weights.fn,
                  .scale = nullptr};
  std::vector<float> products(static_cast<size_t>(x.rows * outputs));
  linear(x, fn, LinearKind::kFull, Tensor{products.data(), x.rows, outputs, Elem::kF32});
  pool_.parallel_for(x.rows, [&](int64_t r) {
    float* mixes = products.data() + r * outputs;
    const float factor =
        rms_factor(kernels_.vector, x.f32() + r * x.cols, x.cols, config().norm_eps);
    for (int o = 0; o < outputs; ++o) mixes[o] *= factor;
    reference::hc_coefficients(shape, mixes, weights.scale, weights.base, mix.pre.f32() + r * n,
                               mix.post.f32() + r * n, mix.comb.f32() + r * n * n);
  });
}

void CpuBackend::hc_collapse(Tensor x, Tensor pre, Tensor out) {
  pool_.parallel_for(x.rows, [&](int64_t r) {
    kernels_.vector.collapse(x.f32() + r * x.cols, pre.f32() + r * pre.cols,
                             static_cast<int>(pre.cols), out.cols, rounds(),
                             out.f32() + r * out.cols);
  });
}

void CpuBackend::hc_collapse_norm(Tensor x, Tensor pre, const float* norm, Tensor u) {
  pool_.parallel_for(x.rows, [&](int64_t r) {
    float* row = u.f32() + r * u.cols;
    kernels_.vector.collapse(x.f32() + r * x.cols, pre.f32() + r * pre.cols,
                             static_cast<int>(pre.cols), u.cols, rounds(), row);
    const float factor = rms_factor(kernels_.vector, row, u.cols, config().norm_eps);
    kernels_.vector.scale_by(row, norm, factor, u.cols, rounds(), row);
  });
}

void CpuBackend::hc_expand(Tensor v, Tensor post, Tensor comb, Tensor x) {
  if (post.cols > cpu::kMaxCopies) return ReferenceBackend::hc_expand(v, post, comb, x);
  pool_.parallel_for(x.rows, [&](int64_t r) {
    kernels_.vector.expand(v.f32() + r * v.cols, post.f32() + r * post.cols,
                           comb.f32() + r * comb.cols, static_cast<int>(post.cols), v.cols,
                           rounds(), x.f32() + r * x.cols);
  });
}

void CpuBackend::rope(Tensor x, int heads, const StepRows& step, const RopeParams& params) {
  pool_.parallel_for(x.rows, [&](int64_t r) {
    StepRows row = step;
    row.rows = 1;
    row.pos += r;  // all that a rotation reads
    ReferenceBackend::rope(one(x, r), heads, row, params);
  });
}

void CpuBackend::route(Tensor logits, const Router& router, const uint8_t* is_image, Tensor ids,
                       Tensor weights) {
  pool_.parallel_for(logits.rows, [&](int64_t r) {
    ReferenceBackend::route(one(logits, r), router, is_image == nullptr ? nullptr : is_image + r,
                            one(ids, r), one(weights, r));
  });
}

void CpuBackend::engram_gather(const EngramTable& table, const int64_t* row_ids, int columns,
                               Tensor out) {
  pool_.parallel_for(out.rows, [&](int64_t r) {
    ReferenceBackend::engram_gather(table, row_ids + r * columns, columns, one(out, r));
  });
}

void CpuBackend::engram_mix(const EngramMixArgs& args) {
  pool_.parallel_for(args.x.rows, [&](int64_t r) {
    EngramMixArgs row = args;
    row.x = one(args.x, r);
    row.kv = one(args.kv, r);
    if (args.is_image != nullptr) row.is_image += r;
    ReferenceBackend::engram_mix(row);
  });
}

void CpuBackend::pack_window(Tensor kv, Tensor packed) {
  pool_.parallel_for(kv.rows,
                     [&](int64_t r) { ReferenceBackend::pack_window(one(kv, r), one(packed, r)); });
}

}  // namespace peregrine
