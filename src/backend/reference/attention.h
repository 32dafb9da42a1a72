// Attention of one head over a list of rows (spec: model.md 5.9), apart from the operation so that
// recorded lists with empty entries can be put through it.
#pragma once

#include <span>

#include "backend/backend.h"

namespace peregrine::reference {

struct HeadQuery {
  const float* q = nullptr;  // [dim]
  int dim = 0;
  float scale = 0;  // of the products
  float sink = 0;   // joins the denominator only
};

// out [dim] = softmax-weighted sum of the rows, each [dim], key and value at once; a null row is an
// empty entry. Works in tiles of 64 entries with a running maximum from -1e30, and weights rows
// with probabilities rounded as the numerics say relative to the maximum so far. A list without
// rows gives zeros.
void attend(const HeadQuery& query, std::span<const float* const> rows, Numerics numerics,
            float* out);

}  // namespace peregrine::reference
