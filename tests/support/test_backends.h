// Which backends the parameterised tests run on, and how a test makes one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace peregrine::test {

// The names in the environment variable PEREGRINE_TEST_BACKENDS, separated by commas, or else
// `usual`. Besides make_backend's there is "cuda_visible": the cuda backend with its buffers in
// host memory that the device reaches, for tests that look into tensors and state directly.
std::vector<std::string> chosen_backends(std::vector<std::string> usual);

std::unique_ptr<Backend> make_test_backend(const std::string& name, const ModelConfig& config,
                                           Numerics numerics, const BackendOptions& options = {});

}  // namespace peregrine::test
