// The lines of a batch file, read as they are wanted.
//
// Owns: the descriptor and one buffer of at most a line. Never blocks: a pipe without data has no
// line yet. Refuses: a file that cannot be opened or read; a line beyond kMaxBatchLineBytes is
// skipped and comes without its text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace peregrine {

inline constexpr size_t kMaxBatchLineBytes = size_t{64} << 20;  // as the server takes a body

struct BatchInputLine {
  int64_t number = 0;  // from 1; blank lines count and are left out
  std::string text;    // without the line end
  bool too_long = false;
};

class BatchInput {
 public:
  // "-" is standard input. Throws Error(kIo).
  explicit BatchInput(const std::string& path);
  ~BatchInput();
  BatchInput(const BatchInput&) = delete;
  BatchInput& operator=(const BatchInput&) = delete;

  // The next line that is not blank; empty when the end is reached or a pipe has nothing now.
  // Throws Error(kIo).
  std::optional<BatchInputLine> next();
  bool at_end() const { return at_end_ && position_ == buffer_.size(); }
  int descriptor() const { return fd_; }

  // Lines of a regular file that are not empty; 0 for anything else. Reads the whole file.
  int64_t count_lines() const;

 private:
  bool fill();
  std::optional<BatchInputLine> take_line();

  const std::string path_;
  int fd_ = -1;
  std::string buffer_;
  size_t position_ = 0;  // where the next line begins
  size_t searched_ = 0;  // no line end before it
  int64_t number_ = 0;
  bool skipping_ = false;  // inside a line that is too long
  bool at_end_ = false;
};

}  // namespace peregrine
