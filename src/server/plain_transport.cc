#include "server/transport.h"
// clang-format off
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
// clang-format on

namespace peregrine {
namespace {

namespace asio = boost::asio;

class PlainTransport : public Transport {
 public:
  explicit PlainTransport(Socket socket) : socket_(std::move(socket)) {}

  asio::awaitable<bool> handshake() override { co_return true; }

  asio::awaitable<size_t> read(char* to, size_t size) override {
    boost::system::error_code error;
    const size_t n = co_await socket_.async_read_some(
        asio::buffer(to, size), asio::redirect_error(asio::use_awaitable, error));
    co_return error ? 0 : n;
  }

  asio::awaitable<bool> write(std::string_view bytes) override {
    boost::system::error_code error;
    co_await asio::async_write(socket_, asio::buffer(bytes.data(), bytes.size()),
                               asio::redirect_error(asio::use_awaitable, error));
    co_return !error;
  }

  asio::awaitable<void> shut_down_sending() override {
    boost::system::error_code ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
    co_return;
  }

  void close() override {
    boost::system::error_code ignored;
    socket_.close(ignored);
  }

 private:
  Socket socket_;
};

}  // namespace

std::unique_ptr<Transport> make_plain_transport(Socket socket) {
  return std::make_unique<PlainTransport>(std::move(socket));
}

}  // namespace peregrine
