// A build without UCX: the same classes, which say so when they are asked for.
#include "base/fail.h"
#include "kvshare/transfer.h"

namespace peregrine {
namespace {

[[noreturn]] void unavailable(const std::string& what) {
  fail(ErrorKind::kInvalidArgument,
       "{}: this build cannot move states between servers, because UCX (libucx-dev) was not found "
       "when it was configured",
       what);
}

}  // namespace

bool transfer_available() { return false; }

class TransferServer::Impl {};
TransferServer::TransferServer(StateVault&, TransferServerOptions options) {
  unavailable(options.listen);
}
TransferServer::~TransferServer() = default;
std::string TransferServer::address() const { return {}; }
TransferServerStats TransferServer::stats() const { return {}; }

class TransferClient::Impl {};
TransferClient::TransferClient(TransferClientOptions) { unavailable("state transfer"); }
TransferClient::~TransferClient() = default;
FetchResult TransferClient::fetch(const FetchRequest&, std::stop_token) { return {}; }
uint64_t TransferClient::memory_bytes() const { return 0; }

}  // namespace peregrine
