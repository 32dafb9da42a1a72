#include "server/http_server.h"

#include "server/http_connection.h"
// clang-format off
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
// clang-format on

#include <algorithm>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/fail.h"

namespace peregrine {
namespace {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;

constexpr auto kLoopProbe = std::chrono::milliseconds(100);
constexpr auto kAcceptPause = std::chrono::milliseconds(50);  // after running out of descriptors

}  // namespace

class HttpServer::Impl {
 public:
  explicit Impl(HttpServerOptions options)
      : options_(std::move(options)),
        io_(options_.io_threads),
        workers_(static_cast<size_t>(options_.worker_threads)),
        acceptor_(asio::make_strand(io_)),
        pause_(acceptor_.get_executor()),
        probe_(io_),
        hub_(std::make_shared<ConnectionHub>()) {
    hub_->limits = options_.limits;
    hub_->answer_headers = options_.answer_headers;
    hub_->handler = options_.handler;
    hub_->refuse = options_.refuse;
    hub_->workers = &workers_;
    if (options_.tls_certificate.empty() != options_.tls_key.empty())
      fail(ErrorKind::kInvalidArgument, "TLS needs both a certificate and a key, found only one");
    if (!options_.tls_certificate.empty()) tls_.emplace(options_.tls_certificate, options_.tls_key);
    listen();
    asio::co_spawn(acceptor_.get_executor(), accept_loop(), asio::detached);
    if (options_.on_loop_delay) probe_loop();
    for (int i = 0; i < options_.io_threads; ++i) threads_.emplace_back([this] { io_.run(); });
  }

  ~Impl() {
    close();
    for_each_connection([](HttpConnection& c) { c.abort(); });
    workers_.join();
    probe_.cancel();
    // Coroutines end by themselves once their sockets are closed.
    for (std::thread& thread : threads_) thread.join();
  }

  void close() {
    hub_->closing = true;
    asio::post(acceptor_.get_executor(), [this] {
      boost::system::error_code ignored;
      acceptor_.close(ignored);
      pause_.cancel();
    });
    for_each_connection([](HttpConnection& c) { c.close_when_idle(); });
  }

  int port() const { return port_; }
  int connections() const { return hub_->open; }

 private:
  void listen() {
    boost::system::error_code error;
    tcp::resolver resolver(io_);
    const auto found =
        resolver.resolve(options_.host, std::to_string(options_.port),
                         tcp::resolver::passive | tcp::resolver::numeric_service, error);
    if (error || found.empty())
      fail(ErrorKind::kIo, "{}: not an address to listen on ({})", options_.host, error.message());
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(4096, error);
    if (error)
      fail(ErrorKind::kIo, "{}:{}: cannot listen ({})", options_.host, options_.port,
           error.message());
    port_ = acceptor_.local_endpoint().port();
  }

  asio::awaitable<void> accept_loop() {
    while (acceptor_.is_open()) {
      const Strand strand = asio::make_strand(asio::any_io_executor(io_.get_executor()));
      Socket socket(strand);
      boost::system::error_code error;
      co_await acceptor_.async_accept(socket, asio::redirect_error(asio::use_awaitable, error));
      if (hub_->closing) break;
      if (error) {
        pause_.expires_after(kAcceptPause);
        co_await pause_.async_wait(asio::redirect_error(asio::use_awaitable, error));
        continue;
      }
      // Above the limit nothing is read or sent: the client sees a closed connection.
      if (hub_->open >= options_.limits.connections) continue;
      adopt(std::move(socket), strand);
    }
  }

  void adopt(Socket socket, const Strand& strand) {
    boost::system::error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    const auto endpoint = socket.remote_endpoint(ignored);
    const std::string peer = endpoint.address().to_string(ignored);
    auto transport =
        tls_ ? tls_->make_transport(std::move(socket)) : make_plain_transport(std::move(socket));
    auto connection = std::make_shared<HttpConnection>(strand, std::move(transport), peer, hub_);
    {
      const std::lock_guard lock(mutex_);
      if (connections_.size() >= prune_at_) {
        std::erase_if(connections_, [](const auto& c) { return c.expired(); });
        prune_at_ = std::max<size_t>(64, connections_.size() * 2);
      }
      connections_.push_back(connection);
    }
    connection->start();
    // close() may have gone through the list just before this one was in it.
    if (hub_->closing) connection->close_when_idle();
  }

  template <typename Visit>
  void for_each_connection(const Visit& visit) {
    std::vector<std::weak_ptr<HttpConnection>> all;
    {
      const std::lock_guard lock(mutex_);
      all = connections_;
    }
    for (const auto& weak : all)
      if (const auto connection = weak.lock()) visit(*connection);
  }

  void probe_loop() {
    probe_.expires_after(kLoopProbe);
    probe_.async_wait([this](const boost::system::error_code& error) {
      if (error || hub_->closing) return;
      options_.on_loop_delay(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - probe_.expiry())
              .count());
      probe_loop();
    });
  }

  const HttpServerOptions options_;
  asio::io_context io_;
  asio::thread_pool workers_;
  asio::basic_socket_acceptor<tcp, asio::strand<asio::io_context::executor_type>> acceptor_;
  asio::steady_timer pause_;
  asio::steady_timer probe_;
  std::optional<TlsContext> tls_;
  const std::shared_ptr<ConnectionHub> hub_;
  int port_ = 0;
  std::mutex mutex_;
  std::vector<std::weak_ptr<HttpConnection>> connections_;
  size_t prune_at_ = 64;
  std::vector<std::thread> threads_;
};

HttpServer::HttpServer(HttpServerOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
HttpServer::~HttpServer() = default;

int HttpServer::port() const { return impl_->port(); }
int HttpServer::connections() const { return impl_->connections(); }
void HttpServer::close() { impl_->close(); }

}  // namespace peregrine
