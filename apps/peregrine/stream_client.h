// A client of /v1/completions for benchmarks: one connection that asks again and again and times
// what comes back.
//
// Everything of a client runs on the executor of its socket. Answers are kept as they came and are
// read only after their end, so that measuring costs little while others are being served.
#pragma once

#include <utility>  // Boost 1.81 needs it first
// clang-format off: the line above stays above
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
// clang-format on

#include <string>

namespace peregrine {

struct ServerAddress {
  std::string host = "127.0.0.1";
  int port = 8000;
};

// "http://127.0.0.1:8000" or "127.0.0.1:8000"; a path is not allowed, nor is https. Throws
// Error(kInvalidArgument).
ServerAddress parse_address(const std::string& url);

struct StreamedAnswer {
  int status = 0;
  bool complete = false;                          // its last chunk came
  std::string body;                               // of the stream: server-sent events
  double begin_us = 0, first_us = 0, end_us = 0;  // request sent, first event, last chunk
};

// What the events of a stream of /v1/completions say together.
struct StreamedText {
  std::string text;
  std::string finish;  // "length"
  int64_t tokens = 0;  // of the usage, which the request asked for
  std::string error;   // what is wrong with the stream; empty: nothing
};
StreamedText read_stream(const StreamedAnswer& answer);

class StreamClient {
 public:
  explicit StreamClient(const boost::asio::any_io_executor& executor) : socket_(executor) {}

  // Throw boost::system::system_error.
  boost::asio::awaitable<void> connect(const ServerAddress& address);
  boost::asio::awaitable<StreamedAnswer> ask(const std::string& json);
  boost::asio::awaitable<std::string> get(const std::string& path);

 private:
  boost::asio::ip::tcp::socket socket_;
  boost::beast::flat_buffer buffer_;
  std::string host_;
};

}  // namespace peregrine
