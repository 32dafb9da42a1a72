// Any bytes as the manifest of a state image: either an Error, or a manifest that serializes to
// these bytes and whose ranges lie inside its image.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "kvshare/state_manifest.h"
#include "peregrine/error.h"

namespace {

using peregrine::StateManifest;

void read(std::span<const std::byte> bytes) {
  try {
    const StateManifest manifest = StateManifest::parse(bytes);
    const auto again = manifest.serialize();
    if (again.size() > bytes.size() || std::memcmp(again.data(), bytes.data(), again.size()) != 0)
      std::abort();
    for (const int64_t prefix : {int64_t{0}, manifest.length() / 2, manifest.length()}) {
      uint64_t end = manifest.manifest_bytes();
      for (const peregrine::ByteRange& range : manifest.ranges(prefix)) {
        if (range.offset < end || range.offset % StateManifest::kAlignment != 0) std::abort();
        end = range.offset + range.bytes;
      }
      if (end > manifest.image_bytes()) std::abort();
    }
  } catch (const peregrine::Error& error) {
    if (error.kind() != peregrine::ErrorKind::kIo) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  read(bytes);
  // The fuzzer cannot guess a checksum: once more with the right one.
  if (size < StateManifest::kHeadBytes + sizeof(peregrine::Digest)) return 0;
  std::vector<std::byte> sealed(bytes.begin(), bytes.end());
  uint64_t manifest_bytes = size;
  std::memcpy(sealed.data() + 72, &manifest_bytes, sizeof(manifest_bytes));
  const peregrine::Digest sum =
      peregrine::blake3_digest(std::span(sealed).first(size - sizeof(peregrine::Digest)));
  std::memcpy(sealed.data() + size - sizeof(sum), sum.data(), sizeof(sum));
  read(sealed);
  return 0;
}
