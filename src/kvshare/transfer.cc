#include "kvshare/transfer.h"

#include "base/fail.h"

namespace peregrine {

PeerTransport parse_transport(const std::string& name) {
  for (const PeerTransport transport : {PeerTransport::kAuto, PeerTransport::kTcp,
                                        PeerTransport::kSharedMemory, PeerTransport::kRdma})
    if (name == transport_name(transport)) return transport;
  fail(ErrorKind::kInvalidArgument, "transport \"{}\": expected auto, tcp, shm or rdma", name);
}

const char* transport_name(PeerTransport transport) {
  switch (transport) {
    case PeerTransport::kAuto:
      return "auto";
    case PeerTransport::kTcp:
      return "tcp";
    case PeerTransport::kSharedMemory:
      return "shm";
    case PeerTransport::kRdma:
      return "rdma";
  }
  return "";
}

const char* outcome_name(FetchOutcome outcome) {
  switch (outcome) {
    case FetchOutcome::kFetched:
      return "fetched";
    case FetchOutcome::kAbsent:
      return "absent";
    case FetchOutcome::kNoPrefix:
      return "no_prefix";
    case FetchOutcome::kBusy:
      return "busy";
    case FetchOutcome::kUnreachable:
      return "unreachable";
    case FetchOutcome::kRefused:
      return "refused";
    case FetchOutcome::kOtherEngine:
      return "other_engine";
    case FetchOutcome::kDamaged:
      return "damaged";
    case FetchOutcome::kDeadline:
      return "deadline";
    case FetchOutcome::kCancelled:
      return "cancelled";
  }
  return "";
}

}  // namespace peregrine
