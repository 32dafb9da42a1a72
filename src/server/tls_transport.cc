#include "server/transport.h"
// clang-format off
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
// clang-format on

#include "base/fail.h"

namespace peregrine {
namespace {

namespace asio = boost::asio;

class TlsTransport : public Transport {
 public:
  TlsTransport(Socket socket, asio::ssl::context& context) : stream_(std::move(socket), context) {}

  asio::awaitable<bool> handshake() override {
    boost::system::error_code error;
    co_await stream_.async_handshake(asio::ssl::stream_base::server,
                                     asio::redirect_error(asio::use_awaitable, error));
    co_return !error;
  }

  asio::awaitable<size_t> read(char* to, size_t size) override {
    boost::system::error_code error;
    const size_t n = co_await stream_.async_read_some(
        asio::buffer(to, size), asio::redirect_error(asio::use_awaitable, error));
    co_return error ? 0 : n;
  }

  asio::awaitable<bool> write(std::string_view bytes) override {
    boost::system::error_code error;
    co_await asio::async_write(stream_, asio::buffer(bytes.data(), bytes.size()),
                               asio::redirect_error(asio::use_awaitable, error));
    co_return !error;
  }

  // No close alert: its exchange needs a reader of its own, and every answer to a TLS client says
  // where it ends (a length, or chunks).
  asio::awaitable<void> shut_down_sending() override {
    boost::system::error_code ignored;
    stream_.next_layer().shutdown(Socket::shutdown_send, ignored);
    co_return;
  }

  void close() override {
    boost::system::error_code ignored;
    stream_.next_layer().close(ignored);
  }

 private:
  asio::ssl::stream<Socket> stream_;
};

}  // namespace

struct TlsContext::Impl {
  asio::ssl::context context{asio::ssl::context::tls_server};
};

TlsContext::TlsContext(const std::string& certificate_file, const std::string& key_file)
    : impl_(std::make_unique<Impl>()) {
  impl_->context.set_options(asio::ssl::context::default_workarounds |
                             asio::ssl::context::no_sslv2 | asio::ssl::context::no_sslv3 |
                             asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1);
  boost::system::error_code error;
  impl_->context.use_certificate_chain_file(certificate_file, error);
  if (error)
    fail(ErrorKind::kIo, "{}: no usable certificate chain ({})", certificate_file, error.message());
  impl_->context.use_private_key_file(key_file, asio::ssl::context::pem, error);
  if (error) fail(ErrorKind::kIo, "{}: no usable private key ({})", key_file, error.message());
}

TlsContext::~TlsContext() = default;

std::unique_ptr<Transport> TlsContext::make_transport(Socket socket) {
  return std::make_unique<TlsTransport>(std::move(socket), impl_->context);
}

}  // namespace peregrine
