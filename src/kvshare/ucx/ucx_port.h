// One UCX context and worker as this project uses them: active messages only, progress on demand.
//
// Remote memory access is left out of the context on purpose: over TCP UCX emulates it, and an
// emulated read gives any peer that connects any byte of the process, secret or not. Large active
// messages go by rendezvous instead, where the receiver reads the sender's memory itself over RDMA
// and shared memory, and which only moves what the sender offered.
// A port belongs to one thread at a time. UCX's own messages go to the debug log.
#pragma once

#include <ucp/api/ucp.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

namespace peregrine {

// What a port hands to its user for one arrived message; valid during the call only.
struct UcxArrival {
  ucp_ep_h from = nullptr;  // null when the sender did not ask for a way back
  std::span<const std::byte> header;
  std::span<const std::byte> data;  // empty when the data is still with the sender
  void* offered = nullptr;          // then this is what take() needs
  size_t bytes = 0;                 // of the data, wherever it is
};

class UcxPort {
 public:
  struct Options {
    std::string transports;  // UCX_TLS
    std::string devices;     // UCX_NET_DEVICES; empty: all
    // Peers that die are noticed. Shared memory cannot: somebody else has to notice.
    bool peer_failures = true;
  };
  // Throws Error(kInvalidArgument) when the transports are not there, Error(kIo) for others.
  explicit UcxPort(const Options& options);
  // Endpoints still open are cut off; what was under way is reported as cancelled.
  ~UcxPort();
  UcxPort(const UcxPort&) = delete;
  UcxPort& operator=(const UcxPort&) = delete;

  ucp_worker_h worker() const { return worker_; }
  std::vector<std::byte> address() const;  // for open() elsewhere on this machine

  // -- progress
  bool progress() { return ucp_worker_progress(worker_) != 0; }
  int event_fd() const { return event_fd_; }
  // Makes the event fd report what comes; false: something is there already.
  bool arm();

  // -- messages
  using Handler = std::function<void(const UcxArrival&)>;
  void on_message(unsigned id, Handler handler);

  using Done = std::function<void(ucs_status_t)>;
  struct Message {
    unsigned id = 0;
    std::vector<std::byte> header;
    std::vector<std::byte> small;     // data of its own, or
    std::span<const std::byte> data;  // data that `keep` keeps
    std::shared_ptr<const void> keep;
  };
  // `done` is called once, maybe before send() returns.
  void send(ucp_ep_h to, Message message, Done done = {});
  // Inside a handler: fetches offered data of arrival.bytes into `room`, which `keep` keeps.
  void take(const UcxArrival& arrival, std::span<std::byte> room, std::shared_ptr<const void> keep,
            Done done);

  // -- endpoints
  using Failed = std::function<void(ucp_ep_h, ucs_status_t)>;
  // Endpoints that fail are reported here, from progress(); close() them later, not in the call.
  void on_failure(Failed failed) { failed_ = std::move(failed); }
  // Null when it cannot be made; `params` as for ucp_ep_create, failures are added.
  ucp_ep_h open(ucp_ep_params_t params);
  // Cuts it off: what is under way ends with an error.
  void close(ucp_ep_h ep);

 private:
  // A request under way: what must live as long, and whom to tell.
  struct Pending {
    UcxPort* port;
    Message message;
    Done done;
  };
  void settle(void* request, Pending* pending);
  static void finish(void* request, ucs_status_t status, Pending* pending);
  static ucs_status_t arrived(void* arg, const void* header, size_t header_bytes, void* data,
                              size_t bytes, const ucp_am_recv_param_t* param);

  const bool peer_failures_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  std::vector<std::unique_ptr<Handler>> handlers_;
  std::unordered_set<Pending*> pending_;
  Failed failed_;
  int closing_ = 0;
};

}  // namespace peregrine
