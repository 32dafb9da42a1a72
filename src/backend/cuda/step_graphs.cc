#include "backend/cuda/step_graphs.h"

namespace peregrine::cuda {

StepGraphs::~StepGraphs() {
  for (auto& [key, graph] : graphs_)
    if (graph.executable != nullptr) cudaGraphExecDestroy(graph.executable);
}

void StepGraphs::run(const RecordKey& key, const std::function<void()>& operations) {
  const auto [found, first] = graphs_.try_emplace(key);
  Graph& graph = found->second;
  if (first || graph.generation != scratch_.generation()) {
    if (graph.executable != nullptr) cudaGraphExecDestroy(graph.executable);
    graph.executable = nullptr;
    operations();
    graph.generation = scratch_.generation();
    return;
  }
  if (graph.executable == nullptr) record(graph, operations);
  check(cudaGraphLaunch(graph.executable, stream_), "replaying a step");
}

void StepGraphs::record(Graph& graph, const std::function<void()>& operations) {
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "recording a step");
  cudaGraph_t recorded = nullptr;
  try {
    operations();
  } catch (...) {
    cudaStreamEndCapture(stream_, &recorded);
    if (recorded != nullptr) cudaGraphDestroy(recorded);
    throw;
  }
  check(cudaStreamEndCapture(stream_, &recorded), "recording a step");
  const cudaError_t status = cudaGraphInstantiate(&graph.executable, recorded, 0);
  cudaGraphDestroy(recorded);
  check(status, "preparing a recorded step");
}

void StepGraphs::forget(const void* owner) {
  for (auto at = graphs_.begin(); at != graphs_.end();) {
    if (at->first.owner != owner) {
      ++at;
      continue;
    }
    if (at->second.executable != nullptr) cudaGraphExecDestroy(at->second.executable);
    at = graphs_.erase(at);
  }
}

}  // namespace peregrine::cuda
