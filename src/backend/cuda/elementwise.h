// Entry of the model and the elementwise operations of the CUDA backend.
#pragma once

#include "backend/cuda/launch.h"

namespace peregrine::cuda {

// As the Backend operations of the same names.
void embed(const Launch& launch, const Weight& table, const int32_t* tokens, int copies, Tensor x);
void gather_rows(const Launch& launch, Tensor src, const int32_t* indices, Tensor dst);
void scale(const Launch& launch, Tensor x, float factor);
void add(const Launch& launch, Tensor x, Tensor y);
void gate(const Launch& launch, Tensor a, Tensor b);

}  // namespace peregrine::cuda
