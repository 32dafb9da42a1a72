// The best of a long score list in linear time, by counting.
#pragma once

#include <cstdint>

namespace peregrine::cpu {

// Writes the indices of the min(k, n) best of `scores` [n] to `out`, ascending, and returns their
// number. Higher score first, then lower index; NaN counts as -infinity. With `skip_infinite`,
// chosen indices of score -infinity are left out.
int64_t top_k(const float* scores, int64_t n, int64_t k, bool skip_infinite, int32_t* out);

}  // namespace peregrine::cpu
