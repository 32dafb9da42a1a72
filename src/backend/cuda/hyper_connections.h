// Hyper-connections of the CUDA backend (spec: model.md 5.3; drafter taps: dspark.md section 2).
#pragma once

#include "backend/cuda/launch.h"

namespace peregrine::cuda {

void hc_mixes(const Launch& launch, Tensor x, const HcWeights& weights, HcMix mix);
void hc_collapse_norm(const Launch& launch, Tensor x, Tensor pre, const float* norm, Tensor u);
void hc_collapse(const Launch& launch, Tensor x, Tensor pre, Tensor out);
void hc_expand(const Launch& launch, Tensor v, Tensor post, Tensor comb, Tensor x);
void hc_tap(const Launch& launch, Tensor x, int64_t column, Tensor out);

}  // namespace peregrine::cuda
