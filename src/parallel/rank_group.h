// The ranks that mpirun started, as communicators.
//
// Built with MPI or without; in a build without it, or in a process that mpirun did not start,
// there is one rank.
#pragma once

#include <memory>

#include "parallel/communicator.h"

namespace peregrine {

class RankGroup {
 public:
  virtual ~RankGroup() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  virtual int local_ranks() const = 0;  // of them on this host
  // A rank of this host whose process is gone, or -1. Signal handlers may ask.
  virtual int dead_rank() const = 0;
  // One more channel between all ranks, for messages or for collectives; every rank must ask for
  // the same ones in the same order.
  virtual std::unique_ptr<RankTransport> open_transport() = 0;
  virtual std::unique_ptr<Communicator> open(const CommunicatorOptions& options) = 0;
};

// Ranks that a launcher announced for this process; 1 without one. Starts nothing.
int launched_ranks();

// Joins the other ranks. Throws Error(kUnavailable) when several were launched and this build has
// no MPI, or its threads cannot share it. Once a process.
std::unique_ptr<RankGroup> join_ranks();

}  // namespace peregrine
