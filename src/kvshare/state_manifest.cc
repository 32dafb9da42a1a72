#include "kvshare/state_manifest.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

#include "base/fail.h"

namespace peregrine {
namespace {

static_assert(std::endian::native == std::endian::little, "images are little endian");

constexpr char kMagic[8] = {'P', 'G', 'R', 'N', 'K', 'V', 'S', 'T'};
constexpr uint32_t kExactFlag = 1;

struct Head {
  char magic[8];
  uint32_t version;
  uint32_t flags;
  std::byte fingerprint[32];
  uint64_t tokens;
  uint32_t sources;
  uint32_t block_bytes;
  uint64_t recent_bytes;
  uint64_t manifest_bytes;
  uint64_t image_bytes;
};
static_assert(sizeof(Head) == StateManifest::kHeadBytes);

struct SourceEntry {
  uint32_t ratio;
  uint32_t zero;
  uint64_t main_row_bytes;
  uint64_t index_row_bytes;
};
static_assert(sizeof(SourceEntry) == 24);

uint64_t aligned(uint64_t bytes) {
  return (bytes + StateManifest::kAlignment - 1) / StateManifest::kAlignment *
         StateManifest::kAlignment;
}
uint64_t blocks_of(uint64_t bytes) {
  return (bytes + StateManifest::kBlockBytes - 1) / StateManifest::kBlockBytes;
}

// Every field against its limit. What is computed from fields within their limits stays far below
// 2^64: at most 64 sources * 2 arrays * 2^24 rows * 2^20 bytes = 2^51.
Head checked_head(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(Head))
    fail(ErrorKind::kIo, "has {} bytes, too few for a manifest", bytes.size());
  Head head;
  std::memcpy(&head, bytes.data(), sizeof(head));
  if (std::memcmp(head.magic, kMagic, sizeof(kMagic)) != 0)
    fail(ErrorKind::kIo, "does not start with \"PGRNKVST\"");
  if (head.version != StateManifest::kVersion)
    fail(ErrorKind::kIo, "has format version {}, expected {}", head.version,
         StateManifest::kVersion);
  if ((head.flags & ~kExactFlag) != 0)
    fail(ErrorKind::kIo, "has unknown flags {:#x}", head.flags & ~kExactFlag);
  if (head.tokens < 1 || head.tokens > StateManifest::kMaxTokens)
    fail(ErrorKind::kIo, "stands for {} tokens, expected 1 to {}", head.tokens,
         StateManifest::kMaxTokens);
  if (head.sources > StateManifest::kMaxSources)
    fail(ErrorKind::kIo, "has {} KV sources, expected at most {}", head.sources,
         StateManifest::kMaxSources);
  if (head.block_bytes != StateManifest::kBlockBytes)
    fail(ErrorKind::kIo, "has blocks of {} bytes, expected {}", head.block_bytes,
         StateManifest::kBlockBytes);
  if (head.recent_bytes > StateManifest::kMaxRecentBytes)
    fail(ErrorKind::kIo, "has a recent part of {} bytes, expected at most {}", head.recent_bytes,
         StateManifest::kMaxRecentBytes);
  if (head.manifest_bytes < sizeof(Head) || head.manifest_bytes > uint64_t{1} << 32)
    fail(ErrorKind::kIo, "has a manifest of {} bytes, expected {} to 2^32", head.manifest_bytes,
         sizeof(Head));
  return head;
}

void check_source(const SourceEntry& source, size_t i) {
  if (source.zero != 0)
    fail(ErrorKind::kIo, "has {} where KV source {} has a zero", source.zero, i);
  if (source.ratio < 1 || source.ratio > StateManifest::kMaxTokens)
    fail(ErrorKind::kIo, "has {} tokens a row in KV source {}, expected 1 to {}", source.ratio, i,
         StateManifest::kMaxTokens);
  if (source.main_row_bytes > StateManifest::kMaxRowBytes ||
      source.index_row_bytes > StateManifest::kMaxRowBytes)
    fail(ErrorKind::kIo, "has rows of {} + {} bytes in KV source {}, expected at most {}",
         source.main_row_bytes, source.index_row_bytes, i, StateManifest::kMaxRowBytes);
}

}  // namespace

void StateManifest::lay_out() {
  sections_.clear();
  uint64_t blocks = 0;
  const auto add = [&](uint64_t bytes, uint64_t row_bytes, int64_t tokens_a_row) {
    sections_.push_back({.offset = 0,
                         .bytes = bytes,
                         .first_block = blocks,
                         .row_bytes = row_bytes,
                         .tokens_a_row = tokens_a_row});
    blocks += blocks_of(bytes);
  };
  for (const StateShape::Source& source : sources_) {
    const auto rows = static_cast<uint64_t>(length() / source.ratio);
    add(rows * source.main_row_bytes, source.main_row_bytes, source.ratio);
    add(rows * source.index_row_bytes, source.index_row_bytes, source.ratio);
  }
  if (recent_bytes_ > 0) add(recent_bytes_, 0, 1);

  manifest_bytes_ = sizeof(Head) + sources_.size() * sizeof(SourceEntry) +
                    tokens_.size() * sizeof(int32_t) + blocks * sizeof(Digest) + sizeof(Digest);
  uint64_t end = aligned(manifest_bytes_);
  for (Section& section : sections_) {
    section.offset = end;
    end = aligned(end + section.bytes);
  }
  image_bytes_ = end;
}

StateManifest StateManifest::of(const SavedState& state, const StateShape& shape) {
  if (const std::string why = peregrine::misfit(state, shape); !why.empty())
    fail(ErrorKind::kInvalidArgument, "{}", why);
  StateManifest m;
  m.fingerprint_ = shape.fingerprint;
  m.exact_ = state.exact;
  m.recent_bytes_ = state.recent.size();
  m.sources_ = shape.sources;
  m.tokens_ = state.tokens;
  m.lay_out();
  m.hashes_.resize(m.sections_.empty()
                       ? 0
                       : m.sections_.back().first_block + blocks_of(m.sections_.back().bytes));
  return m;
}

uint64_t StateManifest::bytes_of(std::span<const std::byte> head) {
  return checked_head(head).manifest_bytes;
}

StateManifest StateManifest::parse(std::span<const std::byte> bytes) {
  const Head head = checked_head(bytes);
  if (head.manifest_bytes > bytes.size())
    fail(ErrorKind::kIo, "has {} bytes, too few for a manifest of {}", bytes.size(),
         head.manifest_bytes);
  bytes = bytes.first(head.manifest_bytes);
  const uint64_t fixed = sizeof(Head) + head.sources * sizeof(SourceEntry) +
                         head.tokens * sizeof(int32_t) + sizeof(Digest);
  if (fixed > bytes.size())
    fail(ErrorKind::kIo, "has a manifest of {} bytes, too few for {} tokens", bytes.size(),
         head.tokens);
  const auto body = bytes.first(bytes.size() - sizeof(Digest));
  if (const Digest sum = blake3_digest(body);
      std::memcmp(sum.data(), body.data() + body.size(), sizeof(sum)) != 0)
    fail(ErrorKind::kIo, "has a damaged manifest");

  StateManifest m;
  std::memcpy(m.fingerprint_.data(), head.fingerprint, sizeof(head.fingerprint));
  m.exact_ = (head.flags & kExactFlag) != 0;
  m.recent_bytes_ = head.recent_bytes;
  const std::byte* at = bytes.data() + sizeof(Head);
  for (size_t i = 0; i < head.sources; ++i, at += sizeof(SourceEntry)) {
    SourceEntry source;
    std::memcpy(&source, at, sizeof(source));
    check_source(source, i);
    m.sources_.push_back({.ratio = static_cast<int>(source.ratio),
                          .main_row_bytes = source.main_row_bytes,
                          .index_row_bytes = source.index_row_bytes});
  }
  m.tokens_.resize(head.tokens);
  std::memcpy(m.tokens_.data(), at, head.tokens * sizeof(int32_t));
  at += head.tokens * sizeof(int32_t);
  for (size_t i = 0; i < m.tokens_.size(); ++i)
    if (m.tokens_[i] < 0)
      fail(ErrorKind::kIo, "has token {} at position {}, expected 0 or more", m.tokens_[i], i);

  m.lay_out();
  if (m.manifest_bytes_ != head.manifest_bytes || m.image_bytes_ != head.image_bytes)
    fail(ErrorKind::kIo, "says {} + {} bytes, expected {} + {} for its tokens and rows",
         head.manifest_bytes, head.image_bytes, m.manifest_bytes_, m.image_bytes_);
  m.hashes_.resize((bytes.size() - fixed) / sizeof(Digest));
  if (!m.hashes_.empty()) std::memcpy(m.hashes_.data(), at, m.hashes_.size() * sizeof(Digest));
  return m;
}

std::vector<std::byte> StateManifest::serialize() const {
  std::vector<std::byte> bytes(manifest_bytes_);
  std::byte* at = bytes.data();
  const auto append = [&at](const void* data, size_t size) {
    if (size > 0) std::memcpy(at, data, size);
    at += size;
  };
  Head head{.magic = {},
            .version = kVersion,
            .flags = exact_ ? kExactFlag : 0,
            .fingerprint = {},
            .tokens = tokens_.size(),
            .sources = static_cast<uint32_t>(sources_.size()),
            .block_bytes = kBlockBytes,
            .recent_bytes = recent_bytes_,
            .manifest_bytes = manifest_bytes_,
            .image_bytes = image_bytes_};
  std::memcpy(head.magic, kMagic, sizeof(kMagic));
  std::memcpy(head.fingerprint, fingerprint_.data(), fingerprint_.size());
  append(&head, sizeof(head));
  for (const StateShape::Source& source : sources_) {
    const SourceEntry entry{.ratio = static_cast<uint32_t>(source.ratio),
                            .zero = 0,
                            .main_row_bytes = source.main_row_bytes,
                            .index_row_bytes = source.index_row_bytes};
    append(&entry, sizeof(entry));
  }
  append(tokens_.data(), tokens_.size() * sizeof(int32_t));
  append(hashes_.data(), hashes_.size() * sizeof(Digest));
  const Digest sum = blake3_digest(std::span(bytes).first(bytes.size() - sizeof(Digest)));
  append(sum.data(), sum.size());
  return bytes;
}

std::string StateManifest::misfit(const StateShape& shape) const {
  if (fingerprint_ != shape.fingerprint) return "the fingerprint of another engine";
  if (length() > shape.context_tokens)
    return fmt::format("a state of {} tokens, expected at most {}", length(), shape.context_tokens);
  if (recent_bytes_ != 0 && recent_bytes_ != shape.recent_bytes)
    return fmt::format("a recent part of {} bytes, expected {}", recent_bytes_, shape.recent_bytes);
  if (sources_.size() != shape.sources.size())
    return fmt::format("rows of {} KV sources, expected {}", sources_.size(), shape.sources.size());
  for (size_t i = 0; i < sources_.size(); ++i) {
    const StateShape::Source& a = sources_[i];
    const StateShape::Source& b = shape.sources[i];
    if (a.ratio != b.ratio || a.main_row_bytes != b.main_row_bytes ||
        a.index_row_bytes != b.index_row_bytes)
      return fmt::format("rows of another shape in KV source {}", i);
  }
  for (size_t i = 0; i < tokens_.size(); ++i)
    if (tokens_[i] >= shape.vocab_size)
      return fmt::format("token {} at position {}, expected 0 to {}", tokens_[i], i,
                         shape.vocab_size - 1);
  return {};
}

int64_t StateManifest::common_prefix(std::span<const int32_t> tokens) const {
  return std::mismatch(tokens.begin(), tokens.end(), tokens_.begin(), tokens_.end()).first -
         tokens.begin();
}

std::vector<ByteRange> StateManifest::ranges(int64_t prefix) const {
  assert(prefix >= 0 && prefix <= length());
  std::vector<ByteRange> parts;
  for (const Section& section : sections_) {
    uint64_t bytes = section.bytes;
    if (section.row_bytes > 0)
      bytes = static_cast<uint64_t>(prefix / section.tokens_a_row) * section.row_bytes;
    else if (prefix < length())
      bytes = 0;  // the recent part belongs to the whole length only
    bytes = std::min(blocks_of(bytes) * kBlockBytes, section.bytes);
    if (bytes > 0) parts.push_back({.offset = section.offset, .bytes = bytes});
  }
  return parts;
}

std::vector<ByteRange> StateManifest::split(std::span<const ByteRange> ranges,
                                            uint64_t piece_bytes) {
  assert(piece_bytes > 0 && piece_bytes % kBlockBytes == 0);
  std::vector<ByteRange> pieces;
  for (const ByteRange& range : ranges)
    for (uint64_t done = 0; done < range.bytes; done += piece_bytes)
      pieces.push_back(
          {.offset = range.offset + done, .bytes = std::min(piece_bytes, range.bytes - done)});
  return pieces;
}

bool StateManifest::intact(ByteRange range, std::span<const std::byte> bytes) const {
  const auto section = std::find_if(sections_.begin(), sections_.end(), [&](const Section& s) {
    return range.offset >= s.offset && range.offset < s.offset + s.bytes;
  });
  if (section == sections_.end() || bytes.size() != range.bytes) return false;
  const uint64_t begin = range.offset - section->offset;
  const uint64_t end = begin + range.bytes;
  if (begin % kBlockBytes != 0 || end > section->bytes ||
      (end % kBlockBytes != 0 && end != section->bytes))
    return false;
  size_t block = section->first_block + begin / kBlockBytes;
  for (uint64_t done = 0; done < range.bytes; done += kBlockBytes, ++block)
    if (blake3_digest(bytes.subspan(done, std::min(kBlockBytes, range.bytes - done))) !=
        hashes_[block])
      return false;
  return true;
}

}  // namespace peregrine
