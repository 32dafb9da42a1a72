// Session::snapshot and restore: the state as bytes.
//
// Layout, little endian: Header; token ids (int32); recent part (StateStore::save_recent); for each
// KV source its global rows (StateStore::save_global).
#include <cstring>

#include "base/fail.h"
#include "engine/session_impl.h"

namespace peregrine {
namespace {

constexpr uint32_t kVersion = 1;
constexpr char kMagic[8] = {'P', 'G', 'R', 'N', 'S', 'N', 'A', 'P'};

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t reserved;
  uint64_t fingerprint;
  int64_t length;
  int64_t decoder_floor;
};
static_assert(sizeof(Header) == 40);

size_t snapshot_bytes(const StateStore& state, int64_t length) {
  size_t bytes =
      sizeof(Header) + static_cast<size_t>(length) * sizeof(int32_t) + state.recent_bytes();
  for (int source = 0; source < state.sources(); ++source)
    bytes += state.global_bytes(source, 0, state.rows_of(source, length));
  return bytes;
}

}  // namespace

std::vector<std::byte> Session::snapshot() const {
  const Impl& s = *impl_;
  std::vector<std::byte> out(snapshot_bytes(s.state, length()));
  Header header{{}, kVersion, 0, s.model->impl().fingerprint, length(), s.decoder_floor};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  std::byte* at = out.data();
  std::memcpy(at, &header, sizeof(header));
  at += sizeof(header);
  if (!s.tokens.empty()) std::memcpy(at, s.tokens.data(), s.tokens.size() * sizeof(int32_t));
  at += s.tokens.size() * sizeof(int32_t);
  s.state.save_recent(s.slot, length(), at);
  at += s.state.recent_bytes();
  for (int source = 0; source < s.state.sources(); ++source) {
    const int64_t rows = s.state.rows_of(source, length());
    s.state.save_global(s.slot, source, 0, rows, at);
    at += s.state.global_bytes(source, 0, rows);
  }
  return out;
}

void Session::restore(std::span<const std::byte> bytes) {
  Impl& s = *impl_;
  Header header;
  if (bytes.size() < sizeof(header))
    fail(ErrorKind::kInvalidArgument, "snapshot: {} bytes, expected at least {}", bytes.size(),
         sizeof(header));
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0)
    fail(ErrorKind::kInvalidArgument, "snapshot: the bytes do not start with \"PGRNSNAP\"");
  if (header.version != kVersion)
    fail(ErrorKind::kInvalidArgument, "snapshot: format version {}, expected {}", header.version,
         kVersion);
  if (header.fingerprint != s.model->impl().fingerprint)
    fail(ErrorKind::kInvalidArgument,
         "snapshot: made by other weights (fingerprint {:016x}, this model {:016x})",
         header.fingerprint, s.model->impl().fingerprint);
  if (header.length < 0 || header.length > s.options.context_tokens)
    fail(ErrorKind::kInvalidArgument, "snapshot: {} tokens, this session's context holds {}",
         header.length, s.options.context_tokens);
  if (bytes.size() != snapshot_bytes(s.state, header.length))
    fail(ErrorKind::kInvalidArgument, "snapshot: {} bytes for {} tokens, expected {}", bytes.size(),
         header.length, snapshot_bytes(s.state, header.length));

  std::vector<int32_t> tokens(static_cast<size_t>(header.length));
  const std::byte* at = bytes.data() + sizeof(header);
  if (!tokens.empty()) std::memcpy(tokens.data(), at, tokens.size() * sizeof(int32_t));
  at += tokens.size() * sizeof(int32_t);
  s.check_tokens(tokens, 0);
  if (header.decoder_floor < 0 || header.decoder_floor > header.length)
    fail(ErrorKind::kInvalidArgument, "snapshot: decoder floor {} of {} tokens",
         header.decoder_floor, header.length);

  s.reset();
  if (!s.state.reserve(s.slot, header.length, 0))
    fail(ErrorKind::kOutOfMemory, "KV cache: no free pages for {} tokens", header.length);
  s.state.apply(s.state.take_updates());
  s.state.load_recent(s.slot, header.length, at);
  at += s.state.recent_bytes();
  for (int source = 0; source < s.state.sources(); ++source) {
    const int64_t rows = s.state.rows_of(source, header.length);
    s.state.load_global(s.slot, source, 0, rows, at);
    at += s.state.global_bytes(source, 0, rows);
  }
  s.tokens = std::move(tokens);
  s.high_water = s.rollback_floor = header.length;
  s.decoder_floor = header.decoder_floor;
}

}  // namespace peregrine
