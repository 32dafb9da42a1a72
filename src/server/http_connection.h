// One client connection: reads requests one after another, hands each to the handler, writes its
// answer (private to the HTTP layer).
//
// Owns: timeouts, keep-alive, 100-continue, chunking, keep-alive comments, and noticing that the
// client is gone while an answer is being made. Assumes: everything runs on the connection's
// strand.
#pragma once

#include "server/transport.h"
// clang-format off
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
// clang-format on

#include <atomic>
#include <deque>
#include <memory>
#include <string>

#include "server/http.h"

namespace peregrine {

// What the connections of one server share.
struct ConnectionHub {
  HttpLimits limits;
  HttpHeaders answer_headers;  // of every answer
  HttpHandler handler;
  // Answers to requests that never reach a handler; `status` says why.
  std::function<HttpResponse(int status, const std::string& sentence)> refuse;
  boost::asio::thread_pool* workers = nullptr;  // handlers run here
  std::atomic<int> open{0};
  std::atomic<bool> closing{false};  // answers say "Connection: close"
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(Strand strand, std::unique_ptr<Transport> transport, std::string peer,
                 std::shared_ptr<ConnectionHub> hub);
  ~HttpConnection();

  void start();
  // Ends it now when no request is under way; else the answer under way is the last.
  void close_when_idle();
  void abort();

 private:
  class ActiveExchange;
  friend class ActiveExchange;
  using Clock = std::chrono::steady_clock;

  boost::asio::awaitable<void> run();
  boost::asio::awaitable<void> pump();
  boost::asio::awaitable<bool> read_request(HttpRequest& request);
  boost::asio::awaitable<bool> answer(HttpRequest request);
  boost::asio::awaitable<bool> send(std::string_view bytes);
  boost::asio::awaitable<void> refuse(int status, const std::string& sentence);
  boost::asio::awaitable<void> wait_until(Clock::time_point deadline);
  boost::asio::awaitable<void> linger();
  void wake() { wake_.cancel(); }
  void peer_is_gone();

  Strand strand_;
  std::unique_ptr<Transport> transport_;
  const std::string peer_;
  const std::shared_ptr<ConnectionHub> hub_;
  boost::asio::steady_timer wake_;      // a condition: cancelled when something changed
  boost::asio::steady_timer space_;     // the same for the pump
  boost::asio::steady_timer watchdog_;  // over a write

  std::string inbox_;       // read and not parsed yet
  bool discard_ = false;    // what still comes is thrown away
  bool peer_gone_ = false;  // end of the stream or an error
  bool idle_ = true;        // no byte of a request has come
  std::shared_ptr<ActiveExchange> active_;
};

}  // namespace peregrine
