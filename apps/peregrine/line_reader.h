// Lines from a person at a terminal, with editing and a history that outlives the program, or from
// a pipe.
#pragma once

#include <memory>
#include <string>

namespace peregrine {

enum class LineStatus {
  kLine,
  kEnd,          // Ctrl-D on an empty line, or the end of the input
  kInterrupted,  // Ctrl-C: the line is given up
};

class LineReader {
 public:
  // The history lies in `history_path`; an empty path or one that cannot be written keeps it in
  // memory only.
  explicit LineReader(const std::string& history_path);
  ~LineReader();

  // `line` comes without its end. The prompt is shown on a terminal only. Needs an InterruptGuard
  // for kInterrupted.
  LineStatus read(const std::string& prompt, std::string& line);

  bool interactive() const { return editor_ != nullptr; }

 private:
  struct Editor;
  LineStatus read_plain(std::string& line);
  std::unique_ptr<Editor> editor_;  // null: no terminal
};

// $XDG_STATE_HOME/peregrine/history, or below ~/.local/state; the folder is made. Empty where there
// is no home.
std::string default_history_path();

}  // namespace peregrine
