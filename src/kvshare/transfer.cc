#include "kvshare/transfer.h"

#include "base/fail.h"

namespace peregrine {

Transport parse_transport(const std::string& name) {
  for (const Transport transport :
       {Transport::kAuto, Transport::kTcp, Transport::kSharedMemory, Transport::kRdma})
    if (name == transport_name(transport)) return transport;
  fail(ErrorKind::kInvalidArgument, "transport \"{}\": expected auto, tcp, shm or rdma", name);
}

const char* transport_name(Transport transport) {
  switch (transport) {
    case Transport::kAuto:
      return "auto";
    case Transport::kTcp:
      return "tcp";
    case Transport::kSharedMemory:
      return "shm";
    case Transport::kRdma:
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
