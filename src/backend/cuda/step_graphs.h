// Recorded steps: a fixed sequence of operations becomes a CUDA graph, so that repeating it is one
// launch.
//
// The first time a key is seen its operations run as they are, which lets lazily made things
// (scratch memory, tables of experts) come to exist; the second time they are recorded; from then
// on the recording is replayed. Recordings end when the scratch memory they point into has moved.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <map>

#include "backend/backend.h"
#include "backend/cuda/launch.h"

namespace peregrine::cuda {

class StepGraphs {
 public:
  StepGraphs(cudaStream_t stream, const Scratch& scratch) : stream_(stream), scratch_(scratch) {}
  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  void run(const RecordKey& key, const std::function<void()>& operations);
  void forget(const void* owner);

 private:
  struct Graph {
    cudaGraphExec_t executable = nullptr;  // null: seen once, or not recordable
    int generation = 0;                    // of the scratch memory
  };

  void record(Graph& graph, const std::function<void()>& operations);

  cudaStream_t stream_;
  const Scratch& scratch_;
  std::map<RecordKey, Graph> graphs_;
};

}  // namespace peregrine::cuda
