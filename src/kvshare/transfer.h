// Reading states of other servers, and letting them read ours (spec: kv-sharing.md, Transfer).
//
// Owns: the connections between servers, their authentication and the movement of bytes, over UCX.
// An owner answers for the images of its vault; a reader takes the manifest, then the parts that
// the prefix it shares needs, checks every block, and has an image that holds that prefix. Bytes
// move from the owner's image into the reader's without a copy between: the reader fetches them
// itself over RDMA and shared memory, the owner streams them over TCP.
// Refuses: peers that do not know the secret, states of another fingerprint or shape, damaged
// bytes. No fault is an exception of fetch(): its result says what happened, and the caller
// computes the prompt instead.
// A build without UCX has these classes too; their constructors throw Error(kInvalidArgument).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>

#include "kvshare/state_vault.h"

namespace peregrine {

// How bytes move. kAuto: RDMA where both sides have a device, shared memory on one machine, else
// TCP. The others restrict that; kRdma throws where there is no device.
enum class PeerTransport { kAuto, kTcp, kSharedMemory, kRdma };

// "auto", "tcp", "shm" or "rdma"; throws Error(kInvalidArgument).
PeerTransport parse_transport(const std::string& name);
const char* transport_name(PeerTransport transport);
// Whether this build can move states between servers.
bool transfer_available();

inline constexpr size_t kMinSecretBytes = 16;

struct TransferServerOptions {
  std::string listen;  // "host:port"; port 0 takes a free one
  std::string secret;  // shared by all members, at least kMinSecretBytes
  PeerTransport transport = PeerTransport::kAuto;
  int max_readers = 16;                          // at once; others are told to come back
  std::chrono::milliseconds max_read{30'000};    // from request to done, whatever the reader asks
  std::chrono::milliseconds max_silence{5'000};  // for a stranger to prove itself
};

struct TransferServerStats {
  int64_t peers = 0;     // connected now
  int64_t refused = 0;   // connections that did not prove to know the secret
  int64_t requests = 0;  // of members
  int64_t reading = 0;   // images being read now
  int64_t expired = 0;   // reads cut off by their deadline
  int64_t broken = 0;    // reads that ended with their connection
  uint64_t sent_bytes = 0;
};

// The owner's side. Its thread sleeps when nobody calls.
class TransferServer {
 public:
  // The vault must outlive the server. Throws Error(kInvalidArgument) for a secret that is too
  // short or an address that does not parse, Error(kIo) when it cannot listen there.
  TransferServer(StateVault& vault, TransferServerOptions options);
  ~TransferServer();

  std::string address() const;  // "host:port", the port it has
  TransferServerStats stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

struct TransferClientOptions {
  StateShape shape;
  std::string secret;
  PeerTransport transport = PeerTransport::kAuto;
  std::string address;                 // of this server: whose network it uses; empty: any
  int max_fetches = 4;                 // at once; more wait
  uint64_t memory_bytes = 4ull << 30;  // of images being fetched, and of fetched ones until they go
};

enum class FetchOutcome {
  kFetched,
  kAbsent,       // the owner has no such state
  kNoPrefix,     // it has one that shares too little with the tokens
  kBusy,         // the owner has too many readers, or this server no memory for it
  kUnreachable,  // no connection, or it broke
  kRefused,      // the other side does not know our secret
  kOtherEngine,  // another fingerprint or shape
  kDamaged,      // bytes that do not hash to what the manifest says, or no manifest
  kDeadline,
  kCancelled,
};
const char* outcome_name(FetchOutcome outcome);

struct FetchRequest {
  std::string address;              // of the owner
  std::string key;                  // conversation_key()
  std::span<const int32_t> tokens;  // of the request: the longest common prefix is read
  int64_t min_tokens = 1;           // fewer are not worth the bytes
  std::chrono::milliseconds deadline{5'000};
};

struct FetchResult {
  FetchOutcome outcome = FetchOutcome::kUnreachable;
  std::string message;  // one sentence, for logs; empty when fetched
  // With kFetched: holds at least `tokens` tokens, every byte of them checked.
  PinnedImage image;
  int64_t tokens = 0;
  uint64_t bytes = 0;  // that crossed
  double seconds = 0;
  bool over_shared_memory = false;
};

// The reader's side. Thread-safe: fetch() blocks its caller, any number of threads may call.
class TransferClient {
 public:
  // Throws Error(kInvalidArgument) as the server's.
  explicit TransferClient(TransferClientOptions options);
  // Fetches still running return kCancelled.
  ~TransferClient();

  // Returns by the deadline, or soon after a stop is requested. Never throws.
  FetchResult fetch(const FetchRequest& request, std::stop_token stop = {});

  // Memory that counts against the budget now.
  uint64_t memory_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace peregrine
