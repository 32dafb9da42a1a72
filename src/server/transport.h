// A connected byte stream, plain or encrypted, as coroutines (private to the HTTP layer).
#pragma once

#include <utility>  // Boost 1.81 needs it first
// clang-format off: the line above stays above
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/strand.hpp>
// clang-format on

#include <memory>
#include <string>
#include <string_view>

namespace peregrine {

using Strand = boost::asio::strand<boost::asio::any_io_executor>;
// Bound to the connection's strand.
using Socket = boost::asio::basic_stream_socket<boost::asio::ip::tcp, Strand>;

// One read and one write may be under way at a time; all calls on the strand.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual boost::asio::awaitable<bool> handshake() = 0;
  // Bytes read; 0 at the end of the stream or on any error.
  virtual boost::asio::awaitable<size_t> read(char* to, size_t size) = 0;
  virtual boost::asio::awaitable<bool> write(std::string_view bytes) = 0;
  virtual boost::asio::awaitable<void> shut_down_sending() = 0;
  virtual void close() = 0;  // pending operations fail
};

std::unique_ptr<Transport> make_plain_transport(Socket socket);

// A certificate chain and its key; PEM files.
class TlsContext {
 public:
  // Throws Error(kIo) when a file cannot be used.
  TlsContext(const std::string& certificate_file, const std::string& key_file);
  ~TlsContext();
  std::unique_ptr<Transport> make_transport(Socket socket);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace peregrine
