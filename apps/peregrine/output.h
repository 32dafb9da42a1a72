// Standard output and the terminal: what is written arrives, or the program says why not.
#pragma once

#include <string>
#include <string_view>

namespace peregrine {

// Keeps descriptors 0 to 2 taken, so that no file of the program gets their numbers, and turns a
// closed pipe from a signal into an error of write(). Call once, before anything is opened.
void prepare_standard_streams();

// Writes all of `text` to standard output at once. Throws Error(kIo) naming the reason: closed
// pipe, full disk, closed descriptor.
void write_output(std::string_view text);
// The same for what the C library still holds for standard output.
void flush_output();

bool output_is_terminal();  // standard output
bool error_is_terminal();   // standard error

// One line on a terminal that is rewritten in place; silent elsewhere and for work that takes less
// than half a second.
class ProgressLine {
 public:
  ~ProgressLine() { clear(); }
  // `seconds`: since the work began.
  void show(const std::string& text, double seconds);
  void clear();

 private:
  bool shown_ = false;
};

}  // namespace peregrine
