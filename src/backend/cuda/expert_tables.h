// Device copies of the host arrays of expert views that ExpertsArgs names.
#pragma once

#include <cuda_runtime_api.h>

#include <span>
#include <unordered_map>
#include <vector>

#include "backend/backend.h"

namespace peregrine::cuda {

class ExpertTables {
 public:
  explicit ExpertTables(cudaStream_t stream) : stream_(stream) {}
  ~ExpertTables();
  ExpertTables(const ExpertTables&) = delete;
  ExpertTables& operator=(const ExpertTables&) = delete;

  // Device array of `routed` followed by *shared unless it is null. Uploaded when an array with
  // these contents is seen first.
  const Expert* get(std::span<const Expert> routed, const Expert* shared);

 private:
  struct Table {
    std::vector<Expert> host;
    Expert* device = nullptr;
  };

  cudaStream_t stream_;
  std::unordered_map<const Expert*, std::vector<Table>> tables_;  // by address of the first view
};

}  // namespace peregrine::cuda
