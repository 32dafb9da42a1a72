#include "parallel/rank_group.h"

#include <cstdlib>

#include "base/fail.h"
#ifdef PEREGRINE_MPI
#include "parallel/mpi_group.h"
#endif

namespace peregrine {
namespace {

class SingleGroup : public RankGroup {
 public:
  int rank() const override { return 0; }
  int ranks() const override { return 1; }
  int local_ranks() const override { return 1; }
  int dead_rank() const override { return -1; }
  std::unique_ptr<RankTransport> open_transport() override {
    return std::make_unique<SingleTransport>();
  }
  std::unique_ptr<Communicator> open(const CommunicatorOptions& options) override {
    return std::make_unique<Communicator>(open_transport(), std::make_shared<LastArrival>(0),
                                          options);
  }
};

}  // namespace

int launched_ranks() {
  // Open MPI's and, for other launchers, the PMI convention.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const char* text = std::getenv(name)) return std::max(1, std::atoi(text));
  return 1;
}

std::unique_ptr<RankGroup> join_ranks() {
  const int launched = launched_ranks();
  if (launched == 1) return std::make_unique<SingleGroup>();
#ifdef PEREGRINE_MPI
  return std::make_unique<MpiGroup>();
#else
  fail(ErrorKind::kUnavailable,
       "{} ranks were started, but this build has no MPI (CMake found none)", launched);
#endif
}

}  // namespace peregrine
