// Session::snapshot and restore: the state as bytes.
//
// Layout, little endian: Header; token ids (int32); recent part (StateStore::save_recent); for each
// KV source its global rows (StateStore::save_global). A checksum covers everything behind it, so
// that a damaged state is refused instead of continued.
#include <cstddef>
#include <cstring>

#include "base/fail.h"
#include "engine/session_impl.h"

namespace peregrine {
namespace {

constexpr uint64_t kVersion = 1;
constexpr char kMagic[8] = {'P', 'G', 'R', 'N', 'S', 'N', 'A', 'P'};

struct Header {
  char magic[8];
  uint64_t version;
  uint64_t checksum;  // of all bytes behind this field
  uint64_t fingerprint;
  int64_t length;
  int64_t decoder_floor;
};
static_assert(sizeof(Header) == 48);

// FNV-1a. Each step is a bijection of the hash, so one wrong byte never goes unnoticed.
uint64_t checksum_of(std::span<const std::byte> snapshot) {
  uint64_t hash = 14695981039346656037u;
  for (const std::byte b : snapshot.subspan(offsetof(Header, fingerprint)))
    hash = (hash ^ static_cast<uint64_t>(b)) * 1099511628211u;
  return hash;
}

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
  Header header{.magic = {},
                .version = kVersion,
                .checksum = 0,
                .fingerprint = s.model->impl().fingerprint,
                .length = length(),
                .decoder_floor = s.decoder_floor};
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
  header.checksum = checksum_of(out);
  std::memcpy(out.data(), &header, sizeof(header));
  return out;
}

void Session::restore(std::span<const std::byte> bytes) {
  Impl& s = *impl_;
  if (s.model->impl().weights.tensors)
    fail(ErrorKind::kInvalidArgument,
         "snapshot: a model on several tensor-parallel ranks cannot take one over");
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
  if (const uint64_t found = checksum_of(bytes); found != header.checksum)
    fail(ErrorKind::kInvalidArgument,
         "snapshot: damaged bytes (their checksum is {:016x}, the header states {:016x})", found,
         header.checksum);

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
