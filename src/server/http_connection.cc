#include "server/http_connection.h"
// clang-format off
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
// clang-format on

#include <fmt/format.h>

#include "server/http_parser.h"

namespace peregrine {
namespace {

namespace asio = boost::asio;
using std::chrono::duration;

constexpr size_t kInboxBytes = 256 << 10;  // read ahead while an answer is being made
constexpr size_t kSmallBlock = 2 << 10, kLargeBlock = 64 << 10;
constexpr double kLingerSeconds = 2;

std::chrono::steady_clock::time_point in_seconds(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(duration<double>(seconds));
}

// Header values come from request data in places: they must not start a line of their own.
void append_header(std::string& out, std::string_view name, std::string_view value) {
  out += name;
  out += ": ";
  for (const char c : value) out += c == '\r' || c == '\n' || c == '\0' ? ' ' : c;
  out += "\r\n";
}

void append_headers(std::string& out, const HttpHeaders& headers) {
  for (const auto& [name, value] : headers) append_header(out, name, value);
}

std::string head(int status, std::string_view content_type, const HttpHeaders& headers,
                 bool keep_alive) {
  std::string out = fmt::format("HTTP/1.1 {} {}\r\n", status, reason_phrase(status));
  if (!content_type.empty()) append_header(out, "Content-Type", content_type);
  append_headers(out, headers);
  append_header(out, "Connection", keep_alive ? "keep-alive" : "close");
  return out;
}

std::string whole_response(const HttpResponse& response, const HttpHeaders& more, bool keep_alive,
                           bool with_body) {
  std::string out = head(response.status, response.content_type, response.headers, keep_alive);
  append_headers(out, more);
  append_header(out, "Content-Length", std::to_string(response.body.size()));
  out += "\r\n";
  if (with_body) out += response.body;
  return out;
}

}  // namespace

// The answer under way. Members without a comment run on the strand only.
class HttpConnection::ActiveExchange : public Exchange,
                                       public std::enable_shared_from_this<ActiveExchange> {
 public:
  ActiveExchange(std::shared_ptr<HttpConnection> connection, HttpRequest request)
      : connection_(std::move(connection)), request_(std::move(request)) {}

  const HttpRequest& request() const override { return request_; }
  void add_header(std::string name, std::string value) override {
    request_.headers.emplace_back(std::move(name), std::move(value));
  }

  void respond(HttpResponse response) override {
    post([this, response = std::move(response)] {
      if (done_ || streaming_) return;
      out_ = whole_response(response, connection_->hub_->answer_headers, keep_alive(),
                            request_.method != "HEAD");
      finish();
    });
  }

  void begin_stream(HttpHeaders headers) override {
    post([this, headers = std::move(headers)] {
      if (done_) return;
      streaming_ = true;
      out_ = head(200, "text/event-stream; charset=utf-8", headers, keep_alive());
      append_headers(out_, connection_->hub_->answer_headers);
      append_header(out_, "Cache-Control", "no-cache");
      append_header(out_, "X-Accel-Buffering", "no");
      if (request_.chunked_answers) append_header(out_, "Transfer-Encoding", "chunked");
      out_ += "\r\n";
      connection_->wake();
    });
  }

  void write(std::string events) override {
    post([this, events = std::move(events)] { append(events); });
  }

  void end_stream() override {
    post([this] {
      if (done_) return;
      if (request_.chunked_answers) out_ += "0\r\n\r\n";
      finish();
    });
  }

  void on_disconnect(std::function<void()> callback) override {
    post([this, callback = std::move(callback)]() mutable {
      if (disconnected_) return callback();
      if (!done_) on_disconnect_ = std::move(callback);
    });
  }

  void post(std::function<void()> work) override {
    asio::post(connection_->strand_,
               [self = shared_from_this(), work = std::move(work)] { work(); });
  }

  void append(std::string_view events) {
    if (done_ || !streaming_ || events.empty()) return;
    if (request_.chunked_answers) out_ += fmt::format("{:x}\r\n", events.size());
    out_ += events;
    if (request_.chunked_answers) out_ += "\r\n";
    if (out_.size() > connection_->hub_->limits.unread_bytes) return connection_->peer_is_gone();
    connection_->wake();
  }

  void disconnect() {
    if (done_) return;
    done_ = disconnected_ = true;
    out_.clear();
    if (auto callback = std::exchange(on_disconnect_, nullptr)) callback();
  }

  bool keep_alive() const {
    return request_.keep_alive && !connection_->hub_->closing &&
           (request_.chunked_answers || !streaming_);
  }
  bool done() const { return done_; }
  bool streaming() const { return streaming_; }
  std::string take_output() { return std::exchange(out_, {}); }

 private:
  void finish() {
    done_ = true;
    on_disconnect_ = nullptr;
    connection_->wake();
  }

  const std::shared_ptr<HttpConnection> connection_;
  HttpRequest request_;
  std::string out_;
  bool streaming_ = false, done_ = false, disconnected_ = false;
  std::function<void()> on_disconnect_;
};

HttpConnection::HttpConnection(Strand strand, std::unique_ptr<Transport> transport,
                               std::string peer, std::shared_ptr<ConnectionHub> hub)
    : strand_(std::move(strand)),
      transport_(std::move(transport)),
      peer_(std::move(peer)),
      hub_(std::move(hub)),
      wake_(strand_),
      space_(strand_),
      watchdog_(strand_) {
  ++hub_->open;
}

HttpConnection::~HttpConnection() { --hub_->open; }

void HttpConnection::start() {
  asio::co_spawn(
      strand_, [self = shared_from_this()] { return self->run(); }, asio::detached);
}

void HttpConnection::close_when_idle() {
  asio::post(strand_, [self = shared_from_this()] {
    if (self->idle_ && !self->active_) self->transport_->close();
    self->wake();
  });
}

void HttpConnection::abort() {
  asio::post(strand_, [self = shared_from_this()] { self->peer_is_gone(); });
}

void HttpConnection::peer_is_gone() {
  peer_gone_ = true;
  transport_->close();
  if (active_) active_->disconnect();
  wake();
}

asio::awaitable<void> HttpConnection::run() {
  watchdog_.expires_after(
      std::chrono::duration_cast<Clock::duration>(duration<double>(hub_->limits.header_seconds)));
  watchdog_.async_wait([self = shared_from_this()](const auto& error) {
    if (!error) self->transport_->close();
  });
  const bool open = co_await transport_->handshake();
  watchdog_.cancel();
  if (open) {
    asio::co_spawn(
        strand_, [self = shared_from_this()] { return self->pump(); }, asio::detached);
    HttpRequest request;
    while (co_await read_request(request)) {
      if (!co_await answer(std::move(request))) break;
      request = {};
    }
    co_await linger();
  }
  peer_is_gone();
  space_.cancel();
}

// Reads whatever comes, also while an answer is being made: that is how a disconnect is noticed.
asio::awaitable<void> HttpConnection::pump() {
  std::string block(kSmallBlock, '\0');
  while (!peer_gone_) {
    while (inbox_.size() >= kInboxBytes && !discard_ && !peer_gone_) {
      boost::system::error_code ignored;
      space_.expires_at(Clock::time_point::max());
      co_await space_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
    const size_t n = co_await transport_->read(block.data(), block.size());
    if (n == 0) break;
    if (!discard_) inbox_.append(block, 0, n);
    if (n == block.size() && n < kLargeBlock) block.resize(kLargeBlock);
    wake();
  }
  peer_gone_ = true;
  if (active_) active_->disconnect();
  wake();
}

asio::awaitable<void> HttpConnection::wait_until(Clock::time_point deadline) {
  boost::system::error_code ignored;
  wake_.expires_at(deadline);
  co_await wake_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

// False: the connection ends.
asio::awaitable<bool> HttpConnection::read_request(HttpRequest& request) {
  const HttpLimits& limits = hub_->limits;
  HttpParser parser(limits);
  idle_ = inbox_.empty();
  auto deadline = in_seconds(idle_ ? limits.idle_seconds : limits.header_seconds);
  size_t looked_at = 0;  // bytes of the inbox that the parser has seen and left
  for (;;) {
    if (inbox_.size() > looked_at) {
      const bool in_body = parser.state() == HttpParser::State::kBody;
      if (idle_) deadline = in_seconds(limits.header_seconds);
      idle_ = false;
      inbox_.erase(0, parser.feed(inbox_));
      looked_at = inbox_.size();
      space_.cancel();
      if (parser.state() == HttpParser::State::kComplete) break;
      if (parser.state() == HttpParser::State::kFailed) {
        co_await refuse(parser.error_status(), parser.error());
        co_return false;
      }
      if (in_body || parser.state() == HttpParser::State::kBody)
        deadline = in_seconds(limits.body_seconds);
      if (parser.take_expectation() && !co_await send("HTTP/1.1 100 Continue\r\n\r\n"))
        co_return false;
      continue;
    }
    if (peer_gone_ || (idle_ && hub_->closing)) co_return false;
    if (Clock::now() >= deadline) {
      if (!idle_) co_await refuse(408, "the request did not arrive in time");
      co_return false;
    }
    co_await wait_until(deadline);
  }
  request = parser.take_request();
  request.peer = peer_;
  co_return true;
}

// False: the connection ends.
asio::awaitable<bool> HttpConnection::answer(HttpRequest request) {
  auto exchange = std::make_shared<ActiveExchange>(shared_from_this(), std::move(request));
  active_ = exchange;
  if (peer_gone_) exchange->disconnect();
  asio::post(*hub_->workers, [hub = hub_, exchange] { hub->handler(exchange); });

  auto keepalive = in_seconds(hub_->limits.keepalive_seconds);
  bool sent = true;
  for (;;) {
    std::string bytes = exchange->take_output();
    if (!bytes.empty()) {
      sent = co_await send(bytes);
      if (!sent) exchange->disconnect();
      keepalive = in_seconds(hub_->limits.keepalive_seconds);
      continue;
    }
    if (exchange->done()) break;
    if (Clock::now() >= keepalive) {
      keepalive = in_seconds(hub_->limits.keepalive_seconds);
      exchange->append(": keep-alive\n\n");
      continue;
    }
    co_await wait_until(keepalive);
  }
  const bool keep = sent && !peer_gone_ && exchange->keep_alive();
  active_ = nullptr;
  co_return keep;
}

asio::awaitable<bool> HttpConnection::send(std::string_view bytes) {
  bool ok = true;
  // In pieces, so that a slow reader that does take something is not cut off.
  while (ok && !bytes.empty()) {
    watchdog_.expires_at(in_seconds(hub_->limits.write_seconds));
    watchdog_.async_wait([self = shared_from_this()](const auto& error) {
      if (!error) self->transport_->close();
    });
    ok = co_await transport_->write(bytes.substr(0, kInboxBytes));
    watchdog_.cancel();
    bytes.remove_prefix(std::min(bytes.size(), kInboxBytes));
  }
  co_return ok;
}

asio::awaitable<void> HttpConnection::refuse(int status, const std::string& sentence) {
  // Bytes left unread at the close would reset the connection before the client sees the answer.
  discard_ = true;
  space_.cancel();
  const std::string bytes =
      whole_response(hub_->refuse(status, sentence), hub_->answer_headers, false, true);
  co_await send(bytes);
}

// Says that nothing follows, and gives the client a moment to read and close.
asio::awaitable<void> HttpConnection::linger() {
  discard_ = true;
  space_.cancel();
  if (peer_gone_) co_return;
  co_await transport_->shut_down_sending();
  const auto deadline = in_seconds(kLingerSeconds);
  while (!peer_gone_ && !hub_->closing && Clock::now() < deadline) co_await wait_until(deadline);
}

}  // namespace peregrine
