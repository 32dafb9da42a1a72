// An open file that reads and writes whole spans, or throws with the system's reason.
//
// Messages are the second half of a sentence ("cannot be opened (No such file or directory)"): the
// caller knows what the file is called in its world.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace peregrine {

// errno in words.
std::string system_reason();

class FileDescriptor {
 public:
  // Flags as for open(2); new files get mode 0644. Throws Error(kIo).
  FileDescriptor(const std::string& path, int flags);
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&&) = delete;
  ~FileDescriptor();

  // These throw Error(kIo).
  uint64_t size() const;
  void write(std::span<const std::byte> bytes) const;  // at the current position
  void read(std::span<std::byte> bytes, uint64_t offset) const;
  // A late write error of the file system may show here.
  void close();

 private:
  int fd_;
};

}  // namespace peregrine
