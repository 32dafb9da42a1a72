// Bytes of a connection to one HTTP request, without sockets.
//
// Owns: the strictness that keeps requests from being read in two ways. Refuses: what the HTTP/1.1
// grammar does not allow, a body with both a length and chunks, transfer codings other than
// "chunked", a 1.1 request without exactly one Host, headers or bodies above their limits.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/http.h"

namespace peregrine {

class HttpParser {
 public:
  explicit HttpParser(const HttpLimits& limits);
  ~HttpParser();

  enum class State { kHeader, kBody, kComplete, kFailed };

  // Takes bytes from the start of what has not been taken yet and returns how many; the rest has to
  // be passed again with what follows it.
  size_t feed(std::string_view bytes);

  State state() const { return state_; }
  // Once, when the headers are there: the client waits for "100 Continue" before it sends the body.
  bool take_expectation();

  int error_status() const { return error_status_; }   // when kFailed
  const std::string& error() const { return error_; }  // one sentence

  HttpRequest take_request();  // when kComplete; `peer` is the caller's

 private:
  struct Beast;
  void fail(int status, std::string sentence);
  void check_header();

  std::unique_ptr<Beast> beast_;
  HttpLimits limits_;
  State state_ = State::kHeader;
  bool expects_continue_ = false;
  int error_status_ = 0;
  std::string error_;
};

}  // namespace peregrine
