// What both sides of a transfer share: numbers of active messages, addresses, ports by transport.
#pragma once

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
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
inline constexpr size_t kPiecesUnderWay = 8;

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

inline bool same_host(const sockaddr& a, const sockaddr& b) {
  if (a.sa_family != b.sa_family) return false;
  if (a.sa_family == AF_INET)
    return reinterpret_cast<const sockaddr_in&>(a).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(b).sin_addr.s_addr;
  return a.sa_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<const sockaddr_in6&>(a).sin6_addr,
                     &reinterpret_cast<const sockaddr_in6&>(b).sin6_addr, sizeof(in6_addr)) == 0;
}

// UCX_TLS of connections between machines. Shared memory has ports of its own: UCX does not notice
// there when a peer dies, so a connection over the network always stands beside it.
inline std::string network_transports(PeerTransport transport) {
  switch (transport) {
    case PeerTransport::kAuto:
      return "^shm";
    case PeerTransport::kRdma:
      return "ib";
    case PeerTransport::kTcp:
    case PeerTransport::kSharedMemory:
      return "tcp";
  }
  return "";
}

// UCX_NET_DEVICES for a server at this address: the interface that has it, and all RDMA ports. UCX
// would otherwise take any interface of both sides for reachable, loopback too. Empty where no
// interface has the address.
inline std::string network_devices(const std::string& address) {
  if (address.empty()) return {};
  const SocketAddress socket(address, true);
  const ucs_sock_addr_t wanted = socket.get();
  std::string devices;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return {};
  for (const ifaddrs* at = all; at != nullptr && devices.empty(); at = at->ifa_next)
    if (at->ifa_addr != nullptr && same_host(*at->ifa_addr, *wanted.addr)) devices = at->ifa_name;
  ::freeifaddrs(all);
  std::error_code none;
  if (devices.empty()) return {};
  for (const auto& device : std::filesystem::directory_iterator("/sys/class/infiniband", none))
    for (const auto& port : std::filesystem::directory_iterator(device.path() / "ports", none))
      devices += "," + device.path().filename().string() + ":" + port.path().filename().string();
  return devices;
}

inline bool may_share_memory(PeerTransport transport) {
  return transport == PeerTransport::kAuto || transport == PeerTransport::kSharedMemory;
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
