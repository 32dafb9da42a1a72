// What two servers say to each other while one reads a state of the other: small messages of fixed
// layout, and the proofs by which each shows that it knows the shared secret.
//
//   reader                                owner
//   kHello(version, nonce)         ->
//                                  <-     kChallenge(nonce, proof, machine)   the reader checks it
//   kProof(proof, address)         ->                                  the owner checks it
//                                  <-     kWelcome or kRefused
//   kRequest(key, fingerprint)     ->
//                                  <-     kOffer(status, sizes)
//   kRead(offset, bytes)           ->
//                                  <-     those bytes of the image; any number of reads
//   kDone                          ->                                  then the next request
//
// A proof is HMAC-SHA256 with the secret over the side's name and both nonces, so one side's proof
// is of no use to the other, or for another connection. `machine` is such a value of the machine: a
// reader that gets the same is on it too, and names an address for shared memory. Nothing is said
// about states before kWelcome. Messages are not encrypted: the secret keeps strangers out, the
// network has to keep listeners out. Bytes: little endian, in the order of the fields below, after
// a type of four bytes, which is the message's place in PeerMessage, counted from 1.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/saved_state.h"
#include "kvshare/directory.h"

namespace peregrine {

inline constexpr uint32_t kPeerProtocolVersion = 1;
inline constexpr size_t kMaxAddressBytes = 16 * 1024;

using Nonce = std::array<std::byte, 32>;
using Proof = std::array<std::byte, 32>;

struct HelloMessage {
  uint32_t version = kPeerProtocolVersion;
  Nonce nonce{};
  bool operator==(const HelloMessage&) const = default;
};
struct ChallengeMessage {
  Nonce nonce{};
  Proof proof{};
  Proof machine{};  // machine_mark(); zeros: no shared memory
  bool operator==(const ChallengeMessage&) const = default;
};
struct ProofMessage {
  Proof proof{};
  std::vector<std::byte> address;  // of a UCX worker on shared memory; empty: none
  bool operator==(const ProofMessage&) const = default;
};
struct WelcomeMessage {
  uint32_t shared_memory = 0;  // 1: data comes to that address
  bool operator==(const WelcomeMessage&) const = default;
};
struct RefusedMessage {
  bool operator==(const RefusedMessage&) const = default;
};
// The owner answers within `deadline_ms`, and may give the image up after it.
struct RequestMessage {
  std::string key;  // conversation_key()
  Fingerprint fingerprint{};
  uint32_t deadline_ms = 0;
  bool operator==(const RequestMessage&) const = default;
};
enum class OfferStatus : uint32_t {
  kFound = 0,
  kAbsent = 1,
  kBusy = 2,         // too many readers
  kOtherEngine = 3,  // another fingerprint
};
struct OfferMessage {
  OfferStatus status = OfferStatus::kAbsent;
  uint64_t manifest_bytes = 0;
  uint64_t image_bytes = 0;
  bool operator==(const OfferMessage&) const = default;
};
struct ReadMessage {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  bool operator==(const ReadMessage&) const = default;
};
struct DoneMessage {
  bool operator==(const DoneMessage&) const = default;
};

// The order is the number on the wire, from 1.
using PeerMessage =
    std::variant<HelloMessage, ChallengeMessage, ProofMessage, WelcomeMessage, RefusedMessage,
                 RequestMessage, OfferMessage, ReadMessage, DoneMessage>;

std::vector<std::byte> encode(const PeerMessage& message);
// Throws Error(kIo) when the bytes are not one whole message.
PeerMessage decode_peer_message(std::span<const std::byte> bytes);

// Random bytes nobody can guess. Throws Error(kInternal) when the system has none.
Nonce random_nonce();

enum class PeerSide { kOwner, kReader };
Proof peer_proof(std::string_view secret, PeerSide side, const Nonce& reader, const Nonce& owner);
// The same for both sides exactly when they run on one machine, as one user, and see each other's
// processes and shared memory. Zeros when the system does not tell.
Proof machine_mark(std::string_view secret, const Nonce& reader, const Nonce& owner);
// Takes the same time whatever differs.
bool same_proof(const Proof& a, const Proof& b);

}  // namespace peregrine
