// A saved state as one run of bytes: the same in host memory, on the wire and in a file.
//
// An image is a manifest and, each at a multiple of 4096 bytes, the sections it lists
// (docs/state_image.md). It may hold less than its manifest describes: whoever reads it from
// elsewhere takes only the ranges that a common prefix needs, checks them (StateManifest::intact)
// and says with held() how many tokens that makes. Not thread-safe while it is being filled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/saved_state.h"
#include "kvshare/page_buffer.h"
#include "kvshare/state_manifest.h"

namespace peregrine {

class StateImage {
 public:
  // Copies and hashes the state. Throws Error(kInvalidArgument) when it does not fit the shape,
  // Error(kOutOfMemory).
  static StateImage build(const SavedState& state, const StateShape& shape);
  // An image with its manifest only, to be filled, in pages of its own or in those given, which
  // have its size. Throws Error(kIo) as StateManifest::parse(), Error(kOutOfMemory).
  static StateImage of_manifest(std::span<const std::byte> manifest);
  static StateImage of_manifest(std::span<const std::byte> manifest, PageBuffer pages);

  const StateManifest& manifest() const { return manifest_; }
  // All of it, manifest first: what is sent and written.
  std::span<const std::byte> bytes() const { return buffer_.bytes(); }
  std::span<const std::byte> part(ByteRange range) const {
    return bytes().subspan(range.offset, range.bytes);
  }

  // Room for the bytes of a range, to be filled.
  std::span<std::byte> room(ByteRange range) {
    return buffer_.bytes().subspan(range.offset, range.bytes);
  }
  // The ranges of that many tokens are there and checked.
  void set_held(int64_t tokens) { held_ = tokens; }
  int64_t held() const { return held_; }
  // Hashes what `prefix` tokens need, 0 < prefix <= held(), again.
  bool intact(int64_t prefix) const;
  bool is_complete() const { return held_ == manifest_.length(); }

  // The end of the image.
  PageBuffer take_pages() { return std::move(buffer_); }

  // The state of the first `prefix` tokens, 0 < prefix <= held(); with its recent part where
  // manifest().is_whole(prefix).
  SavedState state(int64_t prefix) const;

 private:
  StateImage(StateManifest manifest, PageBuffer buffer)
      : manifest_(std::move(manifest)), buffer_(std::move(buffer)) {}

  StateManifest manifest_;
  PageBuffer buffer_;
  int64_t held_ = 0;
};

}  // namespace peregrine
