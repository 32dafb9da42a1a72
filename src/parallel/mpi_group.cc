#include "parallel/mpi_group.h"

// MPI's C++ classes are gone from the standard and their library is not linked.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <fstream>
#include <string>

#include "base/fail.h"

namespace peregrine {
namespace {

constexpr int kMessageTag = 0;

// A process that has ended may linger until its parent looks.
bool process_alive(pid_t pid) {
  if (kill(pid, 0) != 0) return false;
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(stat, line)) return false;
  const size_t name_end = line.rfind(')');  // the name may hold anything
  return name_end == std::string::npos || name_end + 2 >= line.size() ||
         (line[name_end + 2] != 'Z' && line[name_end + 2] != 'X');
}

class MpiTransport : public RankTransport {
 public:
  explicit MpiTransport(const std::vector<pid_t>& local_pids) : local_pids_(local_pids) {
    MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &ranks_);
    arriving_.resize(static_cast<size_t>(ranks_));
  }
  // The communicator is not freed: that is a collective call, and peers may be gone.

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }

  void send(int peer, std::span<const std::byte> message) override {
    Sending& sending = sends_.emplace_back(Sending{.peer = peer, .request = MPI_REQUEST_NULL});
    MPI_Isend(message.data(), static_cast<int>(message.size()), MPI_BYTE, peer, kMessageTag, comm_,
              &sending.request);
  }
  int sending_to() override {
    std::erase_if(sends_, [](Sending& sending) {
      int done = 0;
      MPI_Test(&sending.request, &done, MPI_STATUS_IGNORE);
      return done != 0;
    });
    return sends_.empty() ? -1 : sends_.front().peer;
  }
  // A long message arrives in parts, which the sender has to help with: it is received in the
  // background, since a sender that stops in between would hold a blocking call for ever.
  bool receive(int peer, Bytes& message) override {
    Arriving& arriving = arriving_[static_cast<size_t>(peer)];
    if (arriving.request == MPI_REQUEST_NULL) {
      int there = 0;
      MPI_Message handle;
      MPI_Status status;
      MPI_Improbe(peer, kMessageTag, comm_, &there, &handle, &status);
      if (there == 0) return false;
      int bytes = 0;
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      arriving.message.resize(static_cast<size_t>(bytes));
      MPI_Imrecv(arriving.message.data(), bytes, MPI_BYTE, &handle, &arriving.request);
    }
    int done = 0;
    MPI_Test(&arriving.request, &done, MPI_STATUS_IGNORE);
    if (done == 0) return false;
    message.swap(arriving.message);
    return true;
  }
  bool alive(int peer) override {
    const pid_t pid = local_pids_[static_cast<size_t>(peer)];
    return pid == 0 || process_alive(pid);
  }

 private:
  struct Sending {
    int peer = 0;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  struct Arriving {
    Bytes message;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, ranks_ = 1;
  std::vector<Arriving> arriving_;  // by peer
  std::vector<Sending> sends_;
  const std::vector<pid_t> local_pids_;
};

}  // namespace

MpiGroup::MpiGroup() : arrival_(std::make_shared<LastArrival>(0)) {
  int provided = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS ||
      provided < MPI_THREAD_MULTIPLE)
    fail(ErrorKind::kUnavailable,
         "this MPI cannot be used by several threads (level {}), expected MPI_THREAD_MULTIPLE",
         provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks_);

  struct Place {
    char host[64] = {};
    pid_t pid = 0;
  } mine;
  gethostname(mine.host, sizeof(mine.host) - 1);
  mine.pid = getpid();
  std::vector<Place> places(static_cast<size_t>(ranks_));
  MPI_Allgather(&mine, sizeof(mine), MPI_BYTE, places.data(), sizeof(mine), MPI_BYTE,
                MPI_COMM_WORLD);
  for (const Place& place : places)
    local_pids_.push_back(std::strcmp(place.host, mine.host) == 0 ? place.pid : 0);
}

int MpiGroup::local_ranks() const {
  return static_cast<int>(
      std::count_if(local_pids_.begin(), local_pids_.end(), [](pid_t pid) { return pid != 0; }));
}

// A process that its parent has not looked at yet counts as there: /proc is not for handlers.
int MpiGroup::dead_rank() const {
  for (size_t rank = 0; rank < local_pids_.size(); ++rank)
    if (local_pids_[rank] != 0 && kill(local_pids_[rank], 0) != 0) return static_cast<int>(rank);
  return -1;
}

MpiGroup::~MpiGroup() {
  if (std::uncaught_exceptions() > 0) return;
  for (const pid_t pid : local_pids_)
    if (pid != 0 && !process_alive(pid)) return;
  MPI_Finalize();
}

std::unique_ptr<RankTransport> MpiGroup::open_transport() {
  return std::make_unique<MpiTransport>(local_pids_);
}

std::unique_ptr<Communicator> MpiGroup::open(const CommunicatorOptions& options) {
  return std::make_unique<Communicator>(open_transport(), arrival_, options);
}

}  // namespace peregrine
