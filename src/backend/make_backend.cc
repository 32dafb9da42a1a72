// The devices of this build by name.
#include "backend/backend.h"
#include "backend/reference/reference_backend.h"
#include "base/fail.h"

namespace peregrine {

std::unique_ptr<Backend> make_backend(const std::string& device, const ModelConfig& config,
                                      Numerics numerics, const BackendOptions&) {
  if (device == "reference") return std::make_unique<ReferenceBackend>(config, numerics);
  fail(ErrorKind::kInvalidArgument, "device '{}' is not one of this build's devices: reference",
       device);
}

}  // namespace peregrine
