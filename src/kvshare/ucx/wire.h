// What both sides of a transfer share: numbers of active messages, addresses, ports by transport.
#pragma once

#include <netdb.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "base/fail.h"
#include "kvshare/peer_message.h"
#include "kvshare/transfer.h"
#include "kvshare/ucx/ucx_port.h"

namespace peregrine {

// Peer messages travel as data of kControl, bytes of images as data of kData, whose header is their
// offset in the image (eight bytes).
enum AmId : unsigned { kControl = 1, kData = 2 };

// Bytes a reader asks for at once, and how many such reads are under way: enough to keep a link
// busy while earlier pieces are checked, little enough to give up quickly.
inline constexpr uint64_t kPieceBytes = 8 * StateManifest::kBlockBytes;
inline constexpr size_t kPiecesUnderWay = 4;

inline std::vector<std::byte> offset_header(uint64_t offset) {
  std::vector<std::byte> header(sizeof(offset));
  std::memcpy(header.data(), &offset, sizeof(offset));
  return header;
}

inline UcxPort::Message control(const PeerMessage& message) {
  return {.id = kControl, .header = {}, .small = encode(message), .data = {}, .keep = nullptr};
}

// An address of "host:port" or "[host]:port".
class SocketAddress {
 public:
  // Throws Error(kInvalidArgument) when it does not parse, Error(kIo) when it does not resolve.
  explicit SocketAddress(const std::string& text, bool passive) {
    const size_t colon = text.rfind(':');
    if (colon == std::string::npos || colon + 1 == text.size())
      fail(ErrorKind::kInvalidArgument, "address \"{}\": expected host:port", text);
    host_ = text.substr(0, colon);
    if (host_.size() > 1 && host_.front() == '[' && host_.back() == ']')
      host_ = host_.substr(1, host_.size() - 2);
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
    addrinfo* found = nullptr;
    const int error = ::getaddrinfo(host_.empty() ? nullptr : host_.c_str(),
                                    text.c_str() + colon + 1, &hints, &found);
    if (error != 0)
      fail(error == EAI_SERVICE ? ErrorKind::kInvalidArgument : ErrorKind::kIo,
           "address \"{}\": {}", text, ::gai_strerror(error));
    list_.reset(found);
  }
  ucs_sock_addr_t get() const { return {list_->ai_addr, list_->ai_addrlen}; }
  const std::string& host() const { return host_; }

 private:
  struct Free {
    void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
  };
  std::string host_;
  std::unique_ptr<addrinfo, Free> list_;
};

// UCX_TLS of connections between machines. Shared memory has ports of its own: UCX does not notice
// there when a peer dies, so a connection over the network always stands beside it.
inline std::string network_transports(Transport transport) {
  switch (transport) {
    case Transport::kAuto:
      return "";
    case Transport::kRdma:
      return "ib";
    case Transport::kTcp:
    case Transport::kSharedMemory:
      return "tcp";
  }
  return "";
}
inline bool may_share_memory(Transport transport) {
  return transport == Transport::kAuto || transport == Transport::kSharedMemory;
}
inline std::unique_ptr<UcxPort> shared_memory_port() {
  return std::make_unique<UcxPort>(UcxPort::Options{.transports = "shm", .peer_failures = false});
}

inline void check_secret(const std::string& secret) {
  if (secret.size() < kMinSecretBytes)
    fail(ErrorKind::kInvalidArgument, "the shared secret has {} bytes, expected at least {}",
         secret.size(), kMinSecretBytes);
}

}  // namespace peregrine
