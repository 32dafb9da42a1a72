// The server as a whole: listens, answers what can be answered while the model loads, then serves.
//
//   Server server(options);
//   Engine engine(model, engine_options);
//   server.serve(engine, draft);
//   ... server.shut_down();
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "peregrine/engine.h"
#include "server/http_router.h"
#include "server/http_server.h"
#include "server/service.h"

namespace peregrine {

// One on a machine with few cores, where handing work from thread to thread costs more than a
// second one gains, else two.
int default_io_threads();

class Server {
 public:
  // Listens from here on; everything but /livez is answered 503. Throws Error(kIo).
  explicit Server(ServerOptions options);
  // Ends the engine's requests at once unless shut_down() has; the engine must still live.
  ~Server();

  int port() const { return http_->port(); }
  bool tls() const { return !options_.tls_certificate.empty(); }

  // From here on requests are answered; `draft` is what they all use. `sharing` null: conversations
  // stay on this server. `more_metrics`: text that /metrics shows as well; may be empty.
  void serve(Engine& engine, const DraftOptions& draft, Sharing* sharing = nullptr,
             std::function<std::string()> more_metrics = {});

  // Refuses new requests (/readyz says 503), lets running ones end within the configured time,
  // cancels the rest and closes all connections. Blocks.
  void shut_down();

 private:
  void handle(const std::shared_ptr<Exchange>& exchange);
  std::unique_ptr<HttpRouter> make_router() const;
  std::unique_ptr<HttpRouter> make_loading_router() const;

  const ServerOptions options_;
  std::unique_ptr<Service> service_;
  std::function<std::string()> more_metrics_;
  std::unique_ptr<HttpRouter> loading_router_, full_router_;
  std::atomic<const HttpRouter*> router_{nullptr};
  std::unique_ptr<HttpServer> http_;  // last: ends before what its handlers use
};

}  // namespace peregrine
