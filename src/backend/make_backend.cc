// The devices of this build by name.
#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/reference/reference_backend.h"
#include "base/fail.h"
#ifdef PEREGRINE_CUDA
#include "backend/cuda/cuda_backend.h"
#endif

namespace peregrine {

std::unique_ptr<Backend> make_backend(const std::string& device, const ModelConfig& config,
                                      Numerics numerics, const BackendOptions& options) {
  if (device == "reference") return std::make_unique<ReferenceBackend>(config, numerics);
  if (device == "cpu") return std::make_unique<CpuBackend>(config, numerics, options.threads);
#ifdef PEREGRINE_CUDA
  if (device == "cuda")
    return std::make_unique<CudaBackend>(config, numerics, options.gpu_memory_fraction);
  constexpr const char* kDevices = "reference, cpu, cuda";
#else
  constexpr const char* kDevices = "reference, cpu";
#endif
  fail(ErrorKind::kInvalidArgument, "device '{}' is not one of this build's devices: {}", device,
       kDevices);
}

}  // namespace peregrine
