#include "base/file_descriptor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/fail.h"

namespace peregrine {

std::string system_reason() { return std::error_code(errno, std::generic_category()).message(); }

FileDescriptor::FileDescriptor(const std::string& path, int flags)
    : fd_(::open(path.c_str(), flags, 0644)) {
  if (fd_ < 0) fail(ErrorKind::kIo, "cannot be opened ({})", system_reason());
}

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)) {}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

uint64_t FileDescriptor::size() const {
  struct stat info {};
  if (::fstat(fd_, &info) != 0) fail(ErrorKind::kIo, "has no size ({})", system_reason());
  return static_cast<uint64_t>(info.st_size);
}

void FileDescriptor::write(std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail(ErrorKind::kIo, "cannot be written ({})", system_reason());
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void FileDescriptor::read(std::span<std::byte> bytes, uint64_t offset) const {
  while (!bytes.empty()) {
    const ssize_t n = ::pread(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(ErrorKind::kIo, "cannot be read ({})", system_reason());
    if (n == 0) fail(ErrorKind::kIo, "ends at byte {}", offset);
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
}

void FileDescriptor::close() {
  if (::close(std::exchange(fd_, -1)) != 0)
    fail(ErrorKind::kIo, "cannot be written ({})", system_reason());
}

}  // namespace peregrine
