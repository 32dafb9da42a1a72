#include "kvshare/peer_message.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <type_traits>

#include "base/fail.h"
#include "base/hex.h"

namespace peregrine {
namespace {

static_assert(std::endian::native == std::endian::little, "messages are little endian");

// Visits a message's fields in the order of the wire; the same list writes and reads.
template <typename Field>
void fields(HelloMessage& m, Field field) {
  field(m.version);
  field(m.nonce);
}
template <typename Field>
void fields(ChallengeMessage& m, Field field) {
  field(m.nonce);
  field(m.proof);
  field(m.machine);
}
template <typename Field>
void fields(ProofMessage& m, Field field) {
  field(m.proof);
  field(m.address);
}
template <typename Field>
void fields(WelcomeMessage& m, Field field) {
  field(m.shared_memory);
}
template <typename Field>
void fields(RefusedMessage&, Field) {}
template <typename Field>
void fields(RequestMessage& m, Field field) {
  field(m.key);
  field(m.fingerprint);
  field(m.deadline_ms);
}
template <typename Field>
void fields(OfferMessage& m, Field field) {
  field(m.status);
  field(m.manifest_bytes);
  field(m.image_bytes);
}
template <typename Field>
void fields(ReadMessage& m, Field field) {
  field(m.offset);
  field(m.bytes);
}
template <typename Field>
void fields(DoneMessage&, Field) {}

struct Writer {
  std::vector<std::byte>& out;

  template <typename T>
  void operator()(const T& value) const {
    static_assert(std::is_trivially_copyable_v<T>);
    append(&value, sizeof(value));
  }
  void operator()(const std::string& key) const {
    if (key.size() != kConversationKeyDigits)
      fail(ErrorKind::kInvalidArgument, "a conversation key of {} characters, expected {}",
           key.size(), kConversationKeyDigits);
    append(key.data(), key.size());
  }
  void operator()(const std::vector<std::byte>& address) const {
    (*this)(static_cast<uint32_t>(address.size()));
    append(address.data(), address.size());
  }
  void append(const void* data, size_t bytes) const {
    const auto* at = static_cast<const std::byte*>(data);
    out.insert(out.end(), at, at + bytes);
  }
};

struct Reader {
  std::span<const std::byte>& rest;

  template <typename T>
  void operator()(T& value) const {
    static_assert(std::is_trivially_copyable_v<T>);
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
  }
  void operator()(std::string& key) const {
    const auto bytes = take(kConversationKeyDigits);
    key.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (!is_hex(key)) fail(ErrorKind::kIo, "a peer's message has a key that is not hexadecimal");
  }
  void operator()(std::vector<std::byte>& address) const {
    uint32_t bytes = 0;
    (*this)(bytes);
    if (bytes > kMaxAddressBytes)
      fail(ErrorKind::kIo, "a peer's address has {} bytes, expected at most {}", bytes,
           kMaxAddressBytes);
    const auto taken = take(bytes);
    address.assign(taken.begin(), taken.end());
  }
  void operator()(OfferStatus& status) const {
    uint32_t number = 0;
    (*this)(number);
    if (number > static_cast<uint32_t>(OfferStatus::kOtherEngine))
      fail(ErrorKind::kIo, "a peer's offer has status {}, expected 0 to 3", number);
    status = static_cast<OfferStatus>(number);
  }
  std::span<const std::byte> take(size_t bytes) const {
    if (rest.size() < bytes)
      fail(ErrorKind::kIo, "a peer's message ends {} bytes early", bytes - rest.size());
    const auto taken = rest.first(bytes);
    rest = rest.subspan(bytes);
    return taken;
  }
};

template <size_t I = 0>
PeerMessage decode_type(uint32_t type, std::span<const std::byte>& rest) {
  if constexpr (I < std::variant_size_v<PeerMessage>) {
    if (type != I + 1) return decode_type<I + 1>(type, rest);
    std::variant_alternative_t<I, PeerMessage> message;
    fields(message, Reader{rest});
    return message;
  }
  fail(ErrorKind::kIo, "a peer's message has type {}, expected 1 to {}", type,
       std::variant_size_v<PeerMessage>);
}

}  // namespace

std::vector<std::byte> encode(const PeerMessage& message) {
  std::vector<std::byte> out;
  const Writer write{out};
  write(static_cast<uint32_t>(message.index() + 1));
  std::visit([&](auto copy) { fields(copy, write); }, message);
  return out;
}

PeerMessage decode_peer_message(std::span<const std::byte> bytes) {
  uint32_t type = 0;
  Reader{bytes}(type);
  PeerMessage message = decode_type(type, bytes);
  if (!bytes.empty()) fail(ErrorKind::kIo, "a peer's message has {} bytes too many", bytes.size());
  return message;
}

Nonce random_nonce() {
  Nonce nonce;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), nonce.size()) != 1)
    fail(ErrorKind::kInternal, "the system gives no random bytes");
  return nonce;
}

namespace {

Proof hmac(std::string_view secret, std::string text, const Nonce& reader, const Nonce& owner) {
  text.append(reinterpret_cast<const char*>(reader.data()), reader.size());
  text.append(reinterpret_cast<const char*>(owner.data()), owner.size());
  Proof proof;
  unsigned int bytes = 0;
  if (HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(),
           reinterpret_cast<unsigned char*>(proof.data()), &bytes) == nullptr ||
      bytes != proof.size())
    fail(ErrorKind::kInternal, "HMAC-SHA256 is not available");
  return proof;
}

}  // namespace

Proof peer_proof(std::string_view secret, PeerSide side, const Nonce& reader, const Nonce& owner) {
  return hmac(secret, side == PeerSide::kOwner ? "peregrine owner" : "peregrine reader", reader,
              owner);
}

Proof machine_mark(std::string_view secret, const Nonce& reader, const Nonce& owner) {
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::string text;
  std::error_code error;
  if (!std::getline(boot, text)) return {};
  // The network too: UCX wakes the other side through sockets that belong to it.
  for (const char* space : {"/proc/self/ns/ipc", "/proc/self/ns/pid", "/proc/self/ns/net"}) {
    text += " " + std::filesystem::read_symlink(space, error).string();
    if (error) return {};
  }
  return hmac(secret, fmt::format("peregrine machine {} {}", text, ::getuid()), reader, owner);
}

bool same_proof(const Proof& a, const Proof& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace peregrine
