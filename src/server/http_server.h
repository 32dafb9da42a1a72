// Listens and serves HTTP/1.1 with a few threads, however many connections there are.
//
// Handlers run on worker threads of their own, so that reading a long prompt does not hold up the
// streams of others; their answers go through the connection's strand.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/http.h"

namespace peregrine {

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  int port = 0;                          // 0: any free one
  std::string tls_certificate, tls_key;  // PEM files; both or none
  int io_threads = 2, worker_threads = 2;
  HttpLimits limits = {};
  HttpHeaders answer_headers = {};  // of every answer
  HttpHandler handler = {};
  std::function<HttpResponse(int status, const std::string& sentence)> refuse = {};
  // Told now and then how late the loop runs what is due.
  std::function<void(double seconds)> on_loop_delay = {};
};

class HttpServer {
 public:
  // Binds and starts. Throws Error(kIo) when the address or the TLS files cannot be used.
  explicit HttpServer(HttpServerOptions options);
  ~HttpServer();  // ends all connections at once

  int port() const;
  int connections() const;

  // No new connections; idle ones end, others with the answer under way.
  void close();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace peregrine
