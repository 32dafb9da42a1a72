#include "support/test_backends.h"

#include <cstdlib>
#include <cstring>
#include <sstream>

#ifdef PEREGRINE_CUDA
#include "backend/cuda/cuda_backend.h"
#include "base/fail.h"
#endif

namespace peregrine::test {
namespace {

#ifdef PEREGRINE_CUDA
class VisibleCudaBackend : public CudaBackend {
 public:
  using CudaBackend::CudaBackend;
  void* allocate(size_t bytes) override {
    void* data = nullptr;
    if (cudaMallocHost(&data, bytes == 0 ? 1 : bytes) != cudaSuccess)
      fail(ErrorKind::kOutOfMemory, "no room for {} bytes of pinned memory", bytes);
    std::memset(data, 0, bytes);
    return data;
  }
  void release(void* data) override {
    synchronize();
    cudaFreeHost(data);
  }
};
#endif

}  // namespace

std::vector<std::string> chosen_backends(std::vector<std::string> usual) {
  const char* chosen = std::getenv("PEREGRINE_TEST_BACKENDS");
  if (chosen == nullptr) return usual;
  std::vector<std::string> names;
  std::istringstream list(chosen);
  for (std::string name; std::getline(list, name, ',');) names.push_back(name);
  return names;
}

std::unique_ptr<Backend> make_test_backend(const std::string& name, const ModelConfig& config,
                                           Numerics numerics, const BackendOptions& options) {
#ifdef PEREGRINE_CUDA
  if (name == "cuda_visible") return std::make_unique<VisibleCudaBackend>(config, numerics, 0.9);
#endif
  return make_backend(name, config, numerics, options);
}

}  // namespace peregrine::test
