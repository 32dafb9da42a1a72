// Ctrl-C (SIGINT) as a question that loops ask, instead of an end of the program.
#pragma once

#include <exception>

namespace peregrine {

// While one lives, Ctrl-C only sets a flag. With `once`, a second Ctrl-C ends the program the usual
// way: a step of a large model may take long.
class InterruptGuard {
 public:
  explicit InterruptGuard(bool once);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static bool requested();
  static void clear();
};

// Thrown by a command that Ctrl-C has ended cleanly; main() exits with code 130.
class Interrupted : public std::exception {};

}  // namespace peregrine
