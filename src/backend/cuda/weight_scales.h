// The block scales that the tensor core kernels take.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace peregrine::cuda {

// `codes`: ue8m0. Kernels multiply weights by their scale in bf16, which is exact for scales of
// 2^-63 to 2^63; code 0, which quantisers give to blocks of zeros, is taken as well. Throws
// Error(kBadCheckpoint) for the first other one, with its place in `tensor`.
void check_scales(std::string_view tensor, std::span<const uint8_t> codes);

}  // namespace peregrine::cuda
