// Every way in which the cpu backend can compute on this machine: each dispatch target with the f32
// kernels, and the best one with the bf16 kernels where the CPU has them.
#pragma once

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "support/backend_rig.h"

namespace peregrine::test {

struct CpuVariant {
  CpuTargetOptions options;
  std::string name;  // for test names
};

inline void PrintTo(const CpuVariant& variant, std::ostream* out) { *out << variant.name; }

inline std::vector<CpuVariant> cpu_variants() {
  std::vector<CpuVariant> variants;
  for (const int64_t target : cpu::supported_targets()) {
    variants.push_back(
        {.options = {.target = target, .bf16 = false}, .name = cpu::kernels_for(target).target});
  }
  if (cpu::bf16_product_kernel() != nullptr) {
    variants.push_back({.options = {.target = {}, .bf16 = true}, .name = "bf16"});
  }
  return variants;
}

inline std::unique_ptr<Backend> make_cpu(const CpuVariant& variant, Numerics numerics,
                                         int threads = 2,
                                         const ModelConfig& config = kernel_config()) {
  return std::make_unique<CpuBackend>(config, numerics, threads, variant.options);
}

}  // namespace peregrine::test
