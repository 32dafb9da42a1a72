// The manifest of a state image: what the state stands for, where its sections lie and what every
// block of them hashes to (docs/state_image.md has the bytes).
//
// Owns: the format's head, its strict parser and the geometry that follows from it. A manifest that
// parses is consistent with itself; whether it fits this server is misfit()'s question. Section
// offsets are not stored but follow from the sizes, so there is nothing for them to contradict.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/saved_state.h"
#include "kvshare/blake3_digest.h"

namespace peregrine {

// Part of an image, in bytes from its start.
struct ByteRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  bool operator==(const ByteRange&) const = default;
};

class StateManifest {
 public:
  static constexpr uint32_t kVersion = 1;
  static constexpr uint64_t kAlignment = 4096;         // of sections
  static constexpr uint64_t kBlockBytes = 256 * 1024;  // that one hash stands for
  static constexpr uint64_t kHeadBytes = 88;           // enough for bytes_of()
  static constexpr uint64_t kMaxTokens = uint64_t{1} << 24;
  static constexpr uint64_t kMaxRowBytes = uint64_t{1} << 20;
  static constexpr uint64_t kMaxRecentBytes = uint64_t{1} << 40;
  static constexpr uint32_t kMaxSources = 64;

  // One array of the state: rows of a KV source, or the recent part (the last section, if any).
  struct Section {
    uint64_t offset = 0;  // in the image, a multiple of kAlignment
    uint64_t bytes = 0;
    size_t first_block = 0;  // index of its first hash
    uint64_t row_bytes = 0;  // 0: the recent part
    int64_t tokens_a_row = 1;
  };

  // The manifest of `state`, without hashes: see set_hash() and serialize(). Throws
  // Error(kInvalidArgument) when the state does not fit the shape or the format's limits.
  static StateManifest of(const SavedState& state, const StateShape& shape);

  // Size of the whole manifest, from its first kHeadBytes bytes; 0 < size <= 2^32. Throws
  // Error(kIo) with the reason when these are not the head of a manifest this version reads.
  static uint64_t bytes_of(std::span<const std::byte> head);
  // Reads a manifest from the leading bytes of an image. Throws Error(kIo) with the reason when
  // they are anything but a whole, undamaged manifest.
  static StateManifest parse(std::span<const std::byte> bytes);

  // The manifest's bytes: manifest_bytes() of them, not padded.
  std::vector<std::byte> serialize() const;

  const Fingerprint& fingerprint() const { return fingerprint_; }
  bool exact() const { return exact_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  int64_t length() const { return static_cast<int64_t>(tokens_.size()); }
  uint64_t recent_bytes() const { return recent_bytes_; }
  size_t sources() const { return sources_.size(); }
  uint64_t manifest_bytes() const { return manifest_bytes_; }
  uint64_t image_bytes() const { return image_bytes_; }
  const std::vector<Section>& sections() const { return sections_; }
  size_t blocks() const { return hashes_.size(); }

  // One sentence on why states of this manifest are not states of this engine; empty: they are.
  std::string misfit(const StateShape& shape) const;

  // Tokens that the state and `tokens` have in common at their start.
  int64_t common_prefix(std::span<const int32_t> tokens) const;
  // Whether a prefix of that many tokens is all of the state, recent part included.
  bool is_whole(int64_t prefix) const { return prefix == length() && recent_bytes_ > 0; }

  // The parts of the image that the state's first `prefix` tokens need, in order of offset: each
  // within one section, from its start to the end of a block. All sections for prefix == length().
  std::vector<ByteRange> ranges(int64_t prefix) const;
  // Cuts ranges into pieces of at most `piece_bytes` (a multiple of kBlockBytes).
  static std::vector<ByteRange> split(std::span<const ByteRange> ranges, uint64_t piece_bytes);
  // Whether `bytes`, read from that range, are what the manifest says. The range starts at a block
  // and ends at a block's or its section's end, as those of ranges() and split() do.
  bool intact(ByteRange range, std::span<const std::byte> bytes) const;

  void set_hash(size_t block, const Digest& digest) { hashes_[block] = digest; }

 private:
  void lay_out();

  Fingerprint fingerprint_{};
  bool exact_ = true;
  uint64_t recent_bytes_ = 0;
  std::vector<StateShape::Source> sources_;
  std::vector<int32_t> tokens_;
  std::vector<Digest> hashes_;  // of every block, section by section
  // What follows from the above.
  std::vector<Section> sections_;
  uint64_t manifest_bytes_ = 0;
  uint64_t image_bytes_ = 0;
};

}  // namespace peregrine
