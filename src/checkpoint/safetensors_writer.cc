// Writes through a temporary file beside the target, renamed only when it is complete and synced.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_header.h"

namespace peregrine {
namespace {

// {"name":{"dtype":...,"shape":[...],"data_offsets":[...]},...} padded with blanks so that the data
// part starts 8-byte aligned.
std::string make_header(std::span<const TensorView> tensors, const std::string& path) {
  std::string header = "{";
  uint64_t offset = 0;
  for (const TensorView& view : tensors) {
    if (view.bytes != tensor_bytes(view.dtype, view.shape, view.name, path)) {
      fail(ErrorKind::kInvalidArgument,
           "{}: tensor '{}' was given {} bytes, which do not fit its dtype {} and shape {}", path,
           printable(view.name), view.bytes, dtype_name(view.dtype), view.shape_text());
    }
    fmt::format_to(std::back_inserter(header),
                   R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                   header.size() > 1 ? "," : "", nlohmann::json(view.name).dump(),
                   dtype_name(view.dtype), fmt::join(view.shape, ","), offset, offset + view.bytes);
    offset += view.bytes;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return header;
}

// A file that disappears again unless commit() is reached.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& target)
      : target_(target), path_(fmt::format("{}.{}.part", target, ::getpid())) {
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd_ < 0) io_error("created");
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!committed_) ::unlink(path_.c_str());
  }

  void write(const void* data, size_t size) {
    const char* next = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t written = ::write(fd_, next, std::min<size_t>(size, size_t{1} << 30));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) io_error("written");
      next += written;
      size -= static_cast<size_t>(written);
    }
  }
  void commit() {
    if (::fsync(fd_) != 0) io_error("written");
    if (::close(std::exchange(fd_, -1)) != 0) io_error("written");
    if (::rename(path_.c_str(), target_.c_str()) != 0) io_error("put in place");
    committed_ = true;
  }

 private:
  // The destructor does not run when the constructor throws; nothing is left behind then either.
  [[noreturn]] void io_error(std::string_view what) const {
    fail(ErrorKind::kIo, "{}: cannot be {} ({})", target_, what, std::strerror(errno));
  }

  std::string target_, path_;
  int fd_ = -1;
  bool committed_ = false;
};

}  // namespace

void write_safetensors(const std::string& path, std::span<const TensorView> tensors) {
  const std::string header = make_header(tensors, path);
  TemporaryFile file(path);
  unsigned char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<unsigned char>(header.size() >> (8 * i));
  file.write(length, sizeof length);
  file.write(header.data(), header.size());
  for (const TensorView& view : tensors) file.write(view.data, view.bytes);
  file.commit();
}

}  // namespace peregrine
