// HTTP as request handlers see it: plain structs and one interface, nothing of the network library.
//
// Owns: the vocabulary between the connections (http_connection.h) and the protocols. A handler
// gets an Exchange and answers it once: with a whole response, or with a stream of server-sent
// events.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace peregrine {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;   // as sent: "GET"
  std::string path;     // without the query, as sent: starts with '/'
  std::string query;    // behind the '?'; may be empty
  HttpHeaders headers;  // in order; names as sent
  std::string body;
  bool keep_alive = true;
  bool chunked_answers = true;  // HTTP/1.1; an older client reads a stream until the end
  std::string peer;             // address of the client

  // The first header of this name, whatever its case; null: absent.
  const std::string* header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers = {};
  std::string body = {};
};

const char* reason_phrase(int status);

// One request and its answer. All members may be called from any thread and return at once; what
// they do happens in order on the connection's strand. After a disconnect everything written is
// dropped.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual const HttpRequest& request() const = 0;
  // As if the client had sent it too. Before others look at the request.
  virtual void add_header(std::string name, std::string value) = 0;

  virtual void respond(HttpResponse response) = 0;

  // Status 200, text/event-stream. While nothing is written for a while, comments keep the
  // connection alive. A reader that lets too much pile up is disconnected.
  virtual void begin_stream(HttpHeaders headers) = 0;
  virtual void write(std::string events) = 0;
  virtual void end_stream() = 0;

  // Called once, on the strand, when the client is gone before the answer has ended (at once when
  // it is gone already); dropped when the answer ends.
  virtual void on_disconnect(std::function<void()> callback) = 0;

  // Runs `work` on the strand.
  virtual void post(std::function<void()> work) = 0;
};

using HttpHandler = std::function<void(const std::shared_ptr<Exchange>&)>;

struct HttpLimits {
  size_t header_bytes = 64 << 10;
  uint64_t body_bytes = uint64_t{64} << 20;
  int connections = 16384;
  size_t unread_bytes = 4 << 20;  // of a stream that its reader has not taken
  double idle_seconds = 120;      // a kept connection without a request
  double header_seconds = 20;     // from the first byte of a request to the end of its headers
  double body_seconds = 30;       // between two pieces of a body
  double write_seconds = 30;      // a reader that takes nothing
  double keepalive_seconds = 10;  // between comments of a quiet stream
};

}  // namespace peregrine
