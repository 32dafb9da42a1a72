// The one exception type of the library's borders.
#pragma once

#include <stdexcept>
#include <string>

namespace peregrine {

// What kind of thing was wrong; a program maps these to exit codes, a server to HTTP statuses.
enum class ErrorKind {
  kInvalidArgument,  // an option, request or call that can never work
  kBadCheckpoint,    // weights, config or tokenizer files that do not fit the format or each other
  kIo,               // a file or socket that could not be read or written
  kOutOfMemory,      // memory or a configured budget is exhausted
  kUnavailable,      // works later or elsewhere: queue full, shutting down, device lost
  kInternal,         // our own mistake
};

// Thrown at load and API borders, never on the decode path. The message is one sentence that names
// the thing, what was found and what was expected.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace peregrine
