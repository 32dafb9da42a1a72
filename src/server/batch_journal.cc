#include "server/batch_journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>

#include "base/fail.h"
#include "server/batch_line.h"

namespace peregrine {
namespace {

constexpr size_t kReadBytes = 1 << 20;

// Lines without a custom_id are all alike.
uint64_t fingerprint(const std::optional<std::string>& custom_id) {
  return std::hash<std::optional<std::string>>{}(custom_id);
}

}  // namespace

BatchJournal::BatchJournal(const std::string& path, const std::string& input, bool overwrite)
    : path_(path), synced_(std::chrono::steady_clock::now()) {
  try {
    open_file(input, overwrite);
    if (regular_) read_past();
  } catch (...) {
    if (fd_ >= 0) close(fd_);
    throw;
  }
}

BatchJournal::~BatchJournal() { close(fd_); }

void BatchJournal::open_file(const std::string& input, bool overwrite) {
  fd_ = path_ == "-" ? dup(STDOUT_FILENO)
                     : open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  // A pipe or a terminal may allow writing only.
  if (fd_ < 0 && errno != EISDIR) fd_ = open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  struct stat info = {}, source = {};
  if (fd_ < 0 || fstat(fd_, &info) != 0)
    fail(ErrorKind::kIo, "{}: cannot be opened for writing: {}", path_, std::strerror(errno));
  regular_ = S_ISREG(info.st_mode) && path_ != "-";
  if (!regular_) return;
  if (stat(input.c_str(), &source) == 0 && source.st_dev == info.st_dev &&
      source.st_ino == info.st_ino)
    fail(ErrorKind::kInvalidArgument, "{} is the input as well, expected another file", path_);
  if (flock(fd_, LOCK_EX | LOCK_NB) != 0)
    fail(ErrorKind::kIo, "{} is being written by another run, expected this one alone", path_);
  if (overwrite && ftruncate(fd_, 0) != 0)
    fail(ErrorKind::kIo, "{}: cannot be emptied: {}", path_, std::strerror(errno));
}

void BatchJournal::read_past() {
  std::string buffer;
  off_t good = 0;  // behind the last complete line
  int64_t number = 0;
  while (true) {
    const size_t held = buffer.size();
    buffer.resize(held + kReadBytes);
    const ssize_t got =
        pread(fd_, buffer.data() + held, kReadBytes, good + static_cast<off_t>(held));
    if (got < 0) fail(ErrorKind::kIo, "{}: cannot be read: {}", path_, std::strerror(errno));
    buffer.resize(held + static_cast<size_t>(got));
    if (got == 0) break;
    size_t begin = 0;
    // What was held has no line end.
    for (size_t end = held; (end = buffer.find('\n', end)) != buffer.npos; begin = ++end)
      remember(std::string_view(buffer).substr(begin, end - begin), ++number);
    buffer.erase(0, begin);
    good += static_cast<off_t>(begin);
  }
  std::sort(past_.begin(), past_.end(),
            [](const Past& a, const Past& b) { return a.line < b.line; });
  if (buffer.empty()) return;
  constexpr std::string_view kHead = "{\"id\":\"batch_req_";
  if (buffer.substr(0, kHead.size()) != kHead.substr(0, buffer.size()))
    fail(ErrorKind::kInvalidArgument,
         "{}: ends in something that is no batch result; --overwrite replaces the file", path_);
  if (ftruncate(fd_, good) != 0)
    fail(ErrorKind::kIo, "{}: its torn last line cannot be cut off: {}", path_,
         std::strerror(errno));
}

void BatchJournal::remember(std::string_view line, int64_t result_number) {
  const std::optional<BatchResultHead> head = parse_batch_result(line);
  if (!head)
    fail(ErrorKind::kInvalidArgument,
         "{}: line {} is no batch result; --overwrite replaces the file", path_, result_number);
  past_.push_back({head->line, fingerprint(head->custom_id)});
  ++resumed_;
  resumed_failures_ += head->failed;
}

bool BatchJournal::done(int64_t number, const std::optional<std::string>& custom_id) {
  while (next_past_ < past_.size() && past_[next_past_].line < number) ++next_past_;
  if (next_past_ == past_.size() || past_[next_past_].line != number) return false;
  if (past_[next_past_].request != fingerprint(custom_id))
    fail(ErrorKind::kInvalidArgument,
         "{}: holds the result of another request for line {} ({}), the input has changed; "
         "--overwrite starts anew",
         path_, number, custom_id ? *custom_id : "no custom_id");
  return true;
}

void BatchJournal::append(std::string_view results) {
  while (!results.empty()) {
    const ssize_t written = write(fd_, results.data(), results.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(ErrorKind::kIo, "{}: cannot be written: {}", path_, std::strerror(errno));
    results.remove_prefix(static_cast<size_t>(written));
  }
  const auto now = std::chrono::steady_clock::now();
  if (std::chrono::duration<double>(now - synced_).count() >= kSyncSeconds) sync();
}

void BatchJournal::sync() {
  synced_ = std::chrono::steady_clock::now();
  if (regular_ && fdatasync(fd_) != 0)
    fail(ErrorKind::kIo, "{}: cannot be written to disk: {}", path_, std::strerror(errno));
}

}  // namespace peregrine
