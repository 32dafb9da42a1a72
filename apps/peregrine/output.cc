#include "output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/fail.h"

namespace peregrine {
namespace {

[[noreturn]] void fail_to_write(int reason) {
  fail(ErrorKind::kIo, "standard output cannot be written: {}", std::strerror(reason));
}

}  // namespace

void prepare_standard_streams() {
  std::signal(SIGPIPE, SIG_IGN);
  for (int fd = 0; fd <= 2; ++fd) {
    // The wrong direction on purpose: reading or writing a stream that was closed stays an error.
    if (fcntl(fd, F_GETFD) == -1 && errno == EBADF) {
      [[maybe_unused]] const int opened = open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
    }
  }
}

void write_output(std::string_view text) {
  flush_output();
  while (!text.empty()) {
    const ssize_t written = write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      fail_to_write(errno);
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
}

void flush_output() {
  if (std::fflush(stdout) != 0) fail_to_write(errno);
}

bool output_is_terminal() { return isatty(STDOUT_FILENO) == 1; }
bool error_is_terminal() { return isatty(STDERR_FILENO) == 1; }

void ProgressLine::show(const std::string& text, double seconds) {
  static const bool terminal = error_is_terminal();
  if (!terminal || seconds < 0.5) return;
  fmt::print(stderr, "\r{}\033[K", text);
  shown_ = true;
}

void ProgressLine::clear() {
  if (shown_) fmt::print(stderr, "\r\033[K");
  shown_ = false;
}

}  // namespace peregrine
