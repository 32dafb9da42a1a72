// The activation of an expert (spec: model.md 5.11).
#pragma once

#include "backend/cuda/common.cuh"

namespace peregrine::cuda {

// weight * a * sigmoid(a) * b after the clamps: the gate branch has no lower bound.
__device__ inline float gated(float a, float b, float weight, float limit) {
  if (limit > 0) {
    b = fminf(fmaxf(b, -limit), limit);
    a = fminf(a, limit);
  }
  return weight * (a * (1.0f / (1.0f + expf(-a))) * b);
}

}  // namespace peregrine::cuda
