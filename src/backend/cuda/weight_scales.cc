#include "backend/cuda/weight_scales.h"

#include <algorithm>

#include "backend/cuda/mma_product.h"
#include "base/fail.h"

namespace peregrine::cuda {
namespace {

constexpr int kBias = 127;  // of a ue8m0 code

bool usable(uint8_t code) {
  return code == 0 || (code >= kBias - kMaxScaleExponent && code <= kBias + kMaxScaleExponent);
}

}  // namespace

void check_scales(std::string_view tensor, std::span<const uint8_t> codes) {
  // Whole runs without a branch, which the compiler turns into vector instructions.
  constexpr size_t kRun = 256;
  size_t at = 0;
  for (; at + kRun <= codes.size(); at += kRun) {
    uint8_t unusable = 0;
    for (size_t i = 0; i < kRun; ++i) {
      const uint8_t code = codes[at + i];
      const auto above = static_cast<uint8_t>(code - (kBias - kMaxScaleExponent));
      unusable |= static_cast<uint8_t>((above > 2 * kMaxScaleExponent) & (code != 0));
    }
    if (unusable != 0) break;
  }
  const auto bad =
      std::find_if_not(codes.begin() + static_cast<ptrdiff_t>(at), codes.end(), usable);
  if (bad == codes.end()) return;
  fail(
      ErrorKind::kBadCheckpoint,
      "tensor '{}' has the block scale 2^{} at its byte {}, expected 2^-{} to 2^{}, which the CUDA "
      "kernels multiply by exactly; other devices take every scale",
      tensor, *bad - kBias, bad - codes.begin(), kMaxScaleExponent, kMaxScaleExponent);
}

}  // namespace peregrine::cuda
