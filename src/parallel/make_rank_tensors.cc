#include "parallel/make_rank_tensors.h"

#include "base/fail.h"
#ifdef PEREGRINE_NCCL
#include <cstdlib>
#include <sstream>
#include <vector>

#include "parallel/nccl_tensors.h"
#endif

namespace peregrine {

#ifdef PEREGRINE_NCCL
namespace {

// Of the GPUs that the process may see, the one with this rank's number on its host: a process sees
// no other from now on.
void take_gpu() {
  const char* number = std::getenv("OMPI_COMM_WORLD_LOCAL_RANK");
  const size_t mine = number ? std::strtoul(number, nullptr, 10) : 0;
  std::string gpu = std::to_string(mine);
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) {
    std::vector<std::string> gpus;
    std::istringstream list(visible);
    for (std::string name; std::getline(list, name, ',');) gpus.push_back(name);
    if (mine >= gpus.size())
      fail(ErrorKind::kUnavailable,
           "rank {} of this host has no GPU of its own: CUDA_VISIBLE_DEVICES lists {}", mine,
           gpus.size());
    gpu = gpus[mine];
  }
  setenv("CUDA_VISIBLE_DEVICES", gpu.c_str(), /*overwrite=*/1);
}

}  // namespace
#endif

std::unique_ptr<RankTensors> make_rank_tensors(std::unique_ptr<Communicator> communicator,
                                               const std::string& device) {
  if (device != "cuda") return std::make_unique<RankTensors>(std::move(communicator));
#ifdef PEREGRINE_NCCL
  take_gpu();
  return std::make_unique<NcclTensors>(std::move(communicator));
#else
  fail(ErrorKind::kUnavailable, "--device cuda with {} ranks: this build has no NCCL",
       communicator->ranks());
#endif
}

}  // namespace peregrine
