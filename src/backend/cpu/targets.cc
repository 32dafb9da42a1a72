// The targets of this build that this machine can run, and the kernels of one of them.
#include "backend/cpu/targets.h"

#include <hwy/highway.h>

#include "backend/cpu/kernels.h"

namespace peregrine::cpu {

std::vector<int64_t> supported_targets() {
  std::vector<int64_t> targets;
  const int64_t available = hwy::SupportedTargets() & HWY_TARGETS;
  // Lower bits are better targets.
  for (int bit = 0; bit < 62; ++bit) {
    const int64_t target = int64_t{1} << bit;
    if ((available & target) != 0) targets.push_back(target);
  }
  if (targets.empty()) targets.push_back(HWY_STATIC_TARGET);
  return targets;
}

Kernels kernels_for(int64_t target) {
  return {.target = hwy::TargetName(target),
          .product = f32_product_kernel(target),
          .vector = vector_kernel(target),
          .attention = attention_kernel(target),
          .top_k = top_k_kernel(target)};
}

}  // namespace peregrine::cpu
