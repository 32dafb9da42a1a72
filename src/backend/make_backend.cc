// The devices of this build by name.
#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/reference/reference_backend.h"
#include "base/fail.h"

namespace peregrine {

std::unique_ptr<Backend> make_backend(const std::string& device, const ModelConfig& config,
                                      Numerics numerics, const BackendOptions& options) {
  if (device == "reference") return std::make_unique<ReferenceBackend>(config, numerics);
  if (device == "cpu") return std::make_unique<CpuBackend>(config, numerics, options.threads);
  fail(ErrorKind::kInvalidArgument, "device '{}' is not one of this build's devices: reference, cpu",
       device);
}

}  // namespace peregrine
