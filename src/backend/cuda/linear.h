// Matrix products of the CUDA backend (spec: model.md section 4, quantization.md section 7).
#pragma once

#include "backend/cuda/launch.h"

namespace peregrine::cuda {

// y [rows, out] = x [rows, in] . w^T, as Backend::linear.
void linear(const Launch& launch, Tensor x, const Weight& w, LinearKind kind, Tensor y);
// As Backend::grouped_linear.
void grouped_linear(const Launch& launch, Tensor x, const Weight& w, int groups, Tensor y);
// As Backend::confidence.
void confidence(const Launch& launch, Tensor x, Tensor e, const Weight& proj, Tensor out);

}  // namespace peregrine::cuda
