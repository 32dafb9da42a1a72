// Which Highway targets are compiled, and the choice among them by number instead of through
// Highway's global state, so that two backends of one process may use different targets.
// Include before any Highway header.
#pragma once

// SSSE3 differs from SSE4 in nothing these kernels use; scalable vectors cannot be held in arrays;
// AVX3_DL adds instructions that only the bf16 family uses, which checks for them by itself.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

#include <hwy/targets.h>

#include <cstddef>
#include <cstdint>

namespace peregrine::cpu {

// Position of a target in the tables that HWY_EXPORT makes.
inline size_t target_index(int64_t target) {
  hwy::ChosenTarget chosen;
  chosen.Update(target);
  return chosen.GetIndex();
}

}  // namespace peregrine::cpu
