#include "kvshare/state_file.h"

#include <fcntl.h>

#include <cstdio>
#include <vector>

#include "base/fail.h"
#include "base/file_descriptor.h"

namespace peregrine {
namespace {

std::vector<std::byte> read_manifest(const FileDescriptor& file) {
  const uint64_t file_bytes = file.size();
  std::vector<std::byte> bytes(StateManifest::kHeadBytes);
  file.read(bytes, 0);
  const uint64_t manifest_bytes = StateManifest::bytes_of(bytes);
  if (manifest_bytes > file_bytes)
    fail(ErrorKind::kIo, "has {} bytes, too few for a manifest of {}", file_bytes, manifest_bytes);
  bytes.resize(manifest_bytes);
  file.read(bytes, 0);
  return bytes;
}

void check(const StateManifest& manifest, const StateShape* shape, uint64_t file_bytes) {
  if (const std::string why = shape != nullptr ? manifest.misfit(*shape) : ""; !why.empty())
    fail(ErrorKind::kIo, "has {}", why);
  if (manifest.image_bytes() != file_bytes)
    fail(ErrorKind::kIo, "has {} bytes, expected {}", file_bytes, manifest.image_bytes());
}

}  // namespace

std::string temporary_name(const std::string& path) { return path + ".part"; }

void write_image_file(const std::string& path, const StateImage& image) {
  const std::string temporary = temporary_name(path);
  try {
    FileDescriptor out(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC);
    out.write(image.bytes());
    out.close();
    if (std::rename(temporary.c_str(), path.c_str()) != 0)
      fail(ErrorKind::kIo, "cannot be renamed ({})", system_reason());
  } catch (const Error&) {
    std::remove(temporary.c_str());
    throw;
  }
}

StateManifest read_manifest_file(const std::string& path, const StateShape* shape) {
  const FileDescriptor file(path, O_RDONLY | O_CLOEXEC);
  StateManifest manifest = StateManifest::parse(read_manifest(file));
  check(manifest, shape, file.size());
  return manifest;
}

StateImage read_image_file(const std::string& path, const StateShape* shape) {
  const FileDescriptor file(path, O_RDONLY | O_CLOEXEC);
  const std::vector<std::byte> head = read_manifest(file);
  check(StateManifest::parse(head), shape, file.size());
  StateImage image = StateImage::of_manifest(head);
  const StateManifest& manifest = image.manifest();
  for (const ByteRange& range : manifest.ranges(manifest.length())) {
    file.read(image.room(range), range.offset);
    if (!manifest.intact(range, image.part(range)))
      fail(ErrorKind::kIo, "is damaged between bytes {} and {}", range.offset,
           range.offset + range.bytes);
  }
  image.set_held(manifest.length());
  return image;
}

}  // namespace peregrine
