#include "kvshare/state_image.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace peregrine {
namespace {

// Copies the bytes and hashes them block by block while they are in the cache.
void fill_section(StateManifest& manifest, const StateManifest::Section& section,
                  std::span<const std::byte> from, std::span<std::byte> to) {
  size_t block = section.first_block;
  for (uint64_t done = 0; done < section.bytes; done += StateManifest::kBlockBytes, ++block) {
    const uint64_t n = std::min(StateManifest::kBlockBytes, section.bytes - done);
    const auto piece = to.subspan(done, n);
    std::copy_n(from.begin() + static_cast<ptrdiff_t>(done), n, piece.begin());
    manifest.set_hash(block, blake3_digest(piece));
  }
}

}  // namespace

StateImage StateImage::build(const SavedState& state, const StateShape& shape) {
  StateManifest manifest = StateManifest::of(state, shape);
  PageBuffer buffer(manifest.image_bytes());
  const auto to = [&](const StateManifest::Section& section) {
    return buffer.bytes().subspan(section.offset, section.bytes);
  };
  size_t next = 0;
  for (const SavedState::Source& source : state.sources) {
    for (const auto* rows : {&source.main, &source.index}) {
      const StateManifest::Section& section = manifest.sections()[next++];
      fill_section(manifest, section, *rows, to(section));
    }
  }
  if (!state.recent.empty()) {
    const StateManifest::Section& section = manifest.sections()[next];
    fill_section(manifest, section, state.recent, to(section));
  }
  const std::vector<std::byte> head = manifest.serialize();
  std::copy(head.begin(), head.end(), buffer.bytes().begin());
  StateImage image(std::move(manifest), std::move(buffer));
  image.held_ = state.length();
  return image;
}

StateImage StateImage::of_manifest(std::span<const std::byte> bytes) {
  return of_manifest(bytes, PageBuffer(StateManifest::parse(bytes).image_bytes()));
}

StateImage StateImage::of_manifest(std::span<const std::byte> bytes, PageBuffer pages) {
  StateManifest manifest = StateManifest::parse(bytes);
  assert(pages.bytes().size() == manifest.image_bytes());
  std::copy_n(bytes.begin(), manifest.manifest_bytes(), pages.bytes().begin());
  return StateImage(std::move(manifest), std::move(pages));
}

bool StateImage::intact(int64_t prefix) const {
  const std::vector<ByteRange> ranges = manifest_.ranges(prefix);
  return std::all_of(ranges.begin(), ranges.end(),
                     [&](const ByteRange& range) { return manifest_.intact(range, part(range)); });
}

SavedState StateImage::state(int64_t prefix) const {
  assert(prefix > 0 && prefix <= held_);
  const auto& tokens = manifest_.tokens();
  SavedState state{.tokens = {tokens.begin(), tokens.begin() + prefix},
                   .exact = manifest_.exact(),
                   .recent = {},
                   .sources = {}};
  const auto leading = [&](const StateManifest::Section& section) {
    const auto rows = static_cast<uint64_t>(prefix / section.tokens_a_row);
    const auto from = bytes().subspan(section.offset, rows * section.row_bytes);
    return std::vector<std::byte>(from.begin(), from.end());
  };
  const auto& sections = manifest_.sections();
  for (size_t i = 0; i < manifest_.sources(); ++i)
    state.sources.push_back({leading(sections[2 * i]), leading(sections[2 * i + 1])});
  if (manifest_.is_whole(prefix)) {
    const auto from = part({sections.back().offset, sections.back().bytes});
    state.recent.assign(from.begin(), from.end());
  }
  return state;
}

}  // namespace peregrine
