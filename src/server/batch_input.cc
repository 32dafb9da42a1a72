#include "server/batch_input.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/fail.h"

namespace peregrine {
namespace {

constexpr size_t kReadBytes = 256 << 10;

bool is_blank(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c == ' ' || c == '\t'; });
}

}  // namespace

BatchInput::BatchInput(const std::string& path) : path_(path) {
  fd_ = path == "-" ? dup(STDIN_FILENO) : open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat info = {};
  if (fd_ < 0 || fstat(fd_, &info) != 0)
    fail(ErrorKind::kIo, "{}: cannot be opened: {}", path, std::strerror(errno));
  if (S_ISDIR(info.st_mode)) {
    close(fd_);
    fail(ErrorKind::kIo, "{}: is a directory, expected a file of requests", path);
  }
}

BatchInput::~BatchInput() { close(fd_); }

std::optional<BatchInputLine> BatchInput::next() {
  while (true) {
    while (std::optional<BatchInputLine> line = take_line()) {
      if (line->too_long || !is_blank(line->text)) return line;
    }
    if (at_end_ || !fill()) return std::nullopt;
  }
}

// A line that is complete in the buffer, or what is left at the end of the file.
std::optional<BatchInputLine> BatchInput::take_line() {
  const size_t end = buffer_.find('\n', searched_);
  searched_ = buffer_.size();
  const size_t length = (end == buffer_.npos ? buffer_.size() : end) - position_;
  if (end == buffer_.npos && !(at_end_ && (length > 0 || skipping_))) {
    if (length > kMaxBatchLineBytes) skipping_ = true;
    if (skipping_) position_ = searched_ = buffer_.size();
    return std::nullopt;
  }
  BatchInputLine line{.number = ++number_, .too_long = skipping_ || length > kMaxBatchLineBytes};
  if (!line.too_long) line.text = buffer_.substr(position_, length);
  if (line.text.ends_with('\r')) line.text.pop_back();
  position_ = searched_ = end == buffer_.npos ? buffer_.size() : end + 1;
  skipping_ = false;
  return line;
}

// False: nothing to read now. Otherwise there are more bytes, or the end has come.
bool BatchInput::fill() {
  pollfd ready{.fd = fd_, .events = POLLIN, .revents = 0};
  if (poll(&ready, 1, 0) <= 0) return false;
  buffer_.erase(0, position_);
  searched_ -= position_;
  position_ = 0;
  const size_t before = buffer_.size();
  buffer_.resize(before + kReadBytes);
  const ssize_t got = read(fd_, buffer_.data() + before, kReadBytes);
  buffer_.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return false;
  if (got < 0) fail(ErrorKind::kIo, "{}: cannot be read: {}", path_, std::strerror(errno));
  at_end_ = got == 0;
  return true;
}

int64_t BatchInput::count_lines() const {
  struct stat info = {};
  if (fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) return 0;
  std::vector<char> piece(kReadBytes);
  int64_t lines = 0;
  char last = '\n';
  off_t offset = 0;
  for (ssize_t got; (got = pread(fd_, piece.data(), piece.size(), offset)) > 0; offset += got) {
    for (ssize_t i = 0; i < got; ++i) {
      lines += piece[static_cast<size_t>(i)] == '\n' && last != '\n';
      last = piece[static_cast<size_t>(i)];
    }
  }
  return lines + (last != '\n');
}

}  // namespace peregrine
