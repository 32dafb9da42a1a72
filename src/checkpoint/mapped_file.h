// A file mapped read-only. Owns the mapping; pages are read when touched. A file that another
// process shortens while it is mapped is outside what this can guard against.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace peregrine {

class MappedFile {
 public:
  explicit MappedFile(const std::string& path);  // throws Error(kIo)
  MappedFile(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::string_view contents() const { return {data_, size_}; }

 private:
  const char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace peregrine
