#include "backend/cpu/cpu_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

namespace peregrine {
namespace {

int thread_count(int asked) {
  if (asked > 0) return asked;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

bool uses_bf16(Numerics numerics, const CpuTargetOptions& options) {
  return options.bf16 && numerics == Numerics::kBF16 && cpu::bf16_product_kernel() != nullptr;
}

cpu::Kernels choose_kernels(bool bf16, const CpuTargetOptions& options) {
  cpu::Kernels kernels =
      cpu::kernels_for(options.target.value_or(cpu::supported_targets().front()));
  if (bf16) cpu::use_bf16_attention(kernels.attention);
  return kernels;
}

}  // namespace

CpuBackend::CpuBackend(const ModelConfig& config, Numerics numerics, int threads,
                       const CpuTargetOptions& options)
    : ReferenceBackend(config, numerics),
      has_bf16_(uses_bf16(numerics, options)),
      kernels_(choose_kernels(has_bf16_, options)),
      pool_(thread_count(threads)),
      products_(kernels_.product, has_bf16_ ? cpu::bf16_product_kernel() : nullptr, numerics,
                pool_),
      thread_scratch_(static_cast<size_t>(pool_.threads())) {}

std::string CpuBackend::kernels_name() const {
  return fmt::format("cpu ({}{})", kernels_.target, has_bf16_ ? " + bf16" : "");
}

std::string CpuBackend::name() const {
  return fmt::format("cpu ({}{}, {} thread{})", kernels_.target, has_bf16_ ? " + bf16" : "",
                     pool_.threads(), pool_.threads() == 1 ? "" : "s");
}

}  // namespace peregrine
