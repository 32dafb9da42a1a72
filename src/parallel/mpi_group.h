// Ranks over MPI: launch, and messages between host processes. Left out of builds without MPI.
//
// Messages are non-blocking point-to-point ones that the Communicator polls; MPI's own collectives
// could neither be bounded in time nor be told apart. Peers on the same host are watched by their
// process, others by the communicator's timeout alone.
#pragma once

#include <sys/types.h>

#include <memory>
#include <vector>

#include "parallel/rank_group.h"

namespace peregrine {

class MpiGroup : public RankGroup {
 public:
  // Initialises MPI for use by several threads. Throws Error(kUnavailable).
  MpiGroup();
  // Ends MPI, unless this or another rank has failed: nobody must wait for the others then.
  ~MpiGroup() override;

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  int local_ranks() const override;
  int dead_rank() const override;
  std::unique_ptr<RankTransport> open_transport() override;
  std::unique_ptr<Communicator> open(const CommunicatorOptions& options) override;

 private:
  int rank_ = 0, ranks_ = 1;
  std::vector<pid_t> local_pids_;  // by rank; 0: on another host
  std::shared_ptr<LastArrival> arrival_;
};

}  // namespace peregrine
