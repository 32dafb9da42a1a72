#include "server/server.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <thread>
#include <utility>

#include "server/anthropic_messages.h"
#include "server/conversation.h"
#include "server/json_writer.h"
#include "server/models.h"
#include "server/openai_chat.h"
#include "server/openai_completions.h"
#include "server/page.h"
#include "server/responses.h"
#include "server/sharing_metrics.h"
#include "server/tokenize.h"

namespace peregrine {
namespace {

constexpr auto kFlushTime = std::chrono::seconds(3);  // for the last bytes of the last answers

HttpResponse status_response(int status, const char* word) {
  HttpResponse response{
      .status = status,
      .body = JsonWriter().begin_object().member("status", word).end_object().take()};
  if (status == 503) response.headers.emplace_back("Retry-After", "5");
  return response;
}

HttpHandler fixed(int status, const char* word) {
  return [=](const std::shared_ptr<Exchange>& e) { e->respond(status_response(status, word)); };
}

// Headers of every answer: they let a page read it.
HttpHeaders cors_headers(const std::string& origin) {
  if (origin.empty()) return {};
  return {{"Access-Control-Allow-Origin", origin},
          {"Access-Control-Expose-Headers", "X-Peregrine-Warning, Retry-After"},
          {"Vary", "Origin"}};
}

// What a browser asks before it sends a request of another page; it shows no key then.
HttpResponse preflight_response(const HttpRequest& request) {
  HttpResponse response;
  response.headers = {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
                      {"Access-Control-Max-Age", "86400"}};
  if (const std::string* wanted = request.header("access-control-request-headers"))
    response.headers.emplace_back("Access-Control-Allow-Headers", *wanted);
  return response;
}

}  // namespace

int default_io_threads() { return std::thread::hardware_concurrency() < 8 ? 1 : 2; }

Server::Server(ServerOptions options)
    : options_(std::move(options)), loading_router_(make_loading_router()) {
  router_ = loading_router_.get();
  HttpServerOptions http{.host = options_.host,
                         .port = options_.port,
                         .tls_certificate = options_.tls_certificate,
                         .tls_key = options_.tls_key,
                         .io_threads = options_.io_threads,
                         .worker_threads = options_.worker_threads,
                         .limits = options_.limits,
                         .answer_headers = cors_headers(options_.cors_origin)};
  http.handler = [this](const std::shared_ptr<Exchange>& exchange) { handle(exchange); };
  http.refuse = [](int status, const std::string& sentence) {
    return error_response({status, sentence, {}, "invalid_request"}, Dialect::kOpenAi);
  };
  http.on_loop_delay = [this](double seconds) {
    if (router_ == full_router_.get()) service_->metrics.loop_delay(seconds);
  };
  http_ = std::make_unique<HttpServer>(std::move(http));
}

Server::~Server() {
  if (!service_) return;
  service_->draining = true;
  http_->close();
  if (service_->sharing) service_->sharing->finish();
  // No callback may come once the connections' threads have ended.
  service_->engine.drain(0);
  while (service_->unsettled > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void Server::handle(const std::shared_ptr<Exchange>& exchange) {
  if (!options_.cors_origin.empty() && exchange->request().method == "OPTIONS")
    return exchange->respond(preflight_response(exchange->request()));
  router_.load()->handle(exchange);
}

void Server::serve(Engine& engine, const DraftOptions& draft, Sharing* sharing,
                   std::function<std::string()> more_metrics) {
  more_metrics_ = std::move(more_metrics);
  service_ = std::make_unique<Service>(engine, options_, draft, sharing);
  full_router_ = make_router();
  router_ = full_router_.get();
}

std::unique_ptr<HttpRouter> Server::make_loading_router() const {
  auto router = std::make_unique<HttpRouter>(Auth({}));
  router->add({.method = "GET", .path = "/livez", .handle = fixed(200, "ok")});
  for (const char* path : {"/readyz", "/health"})
    router->add({.method = "GET", .path = path, .handle = fixed(503, "loading")});
  for (const char* method : {"GET", "POST"}) {
    router->add({.method = method,
                 .path = "",
                 .handle =
                     [](const std::shared_ptr<Exchange>&) {
                       ApiError loading{503, "the model is being loaded", {}, "loading"};
                       loading.retry_after_seconds = 5;
                       throw loading;
                     },
                 .with_rest = true});
  }
  return router;
}

std::unique_ptr<HttpRouter> Server::make_router() const {
  auto router = std::make_unique<HttpRouter>(Auth(options_.api_keys));
  Service* service = service_.get();
  const auto ready = [service](const std::shared_ptr<Exchange>& e) {
    e->respond(service->draining ? status_response(503, "shutting down")
                                 : status_response(200, "ok"));
  };
  router->add({.method = "GET", .path = "/livez", .handle = fixed(200, "ok"), .open = true});
  router->add({.method = "GET", .path = "/readyz", .handle = ready, .open = true});
  router->add({.method = "GET", .path = "/health", .handle = ready, .open = true});
  router->add({.method = "GET",
               .path = "/",
               .handle = [](const std::shared_ptr<Exchange>& e) { e->respond(page_response()); },
               .open = true});
  router->add({.method = "GET",
               .path = "/version",
               .handle =
                   [service](const std::shared_ptr<Exchange>& e) {
                     JsonWriter w;
                     w.begin_object().member("version", service->version);
                     w.member("system_fingerprint", service->fingerprint).end_object();
                     e->respond({.body = w.take()});
                   },
               .open = true});

  router->add(
      {.method = "GET", .path = "/metrics", .handle = [this](const std::shared_ptr<Exchange>& e) {
         e->respond({.content_type = "text/plain; version=0.0.4; charset=utf-8",
                     .body = service_->metrics.text(http_->connections()) +
                             (service_->sharing ? sharing_text(service_->sharing->stats())
                                                : std::string()) +
                             (more_metrics_ ? more_metrics_() : std::string())});
       }});

  const auto add = [&](const char* method, const char* path, auto handler, bool with_rest = false) {
    router->add({.method = method,
                 .path = path,
                 .handle =
                     [service, handler](const std::shared_ptr<Exchange>& e) {
                       if (service->draining) {
                         ApiError stopping{503, "the server is shutting down", {}, "shutting_down"};
                         stopping.retry_after_seconds = 5;
                         throw stopping;
                       }
                       if (service->options.log_prompts && !e->request().body.empty())
                         spdlog::info("request_body path={} {}", e->request().path,
                                      e->request().body);
                       handler(*service, e);
                     },
                 .with_rest = with_rest});
  };
  // Handlers that generate wait for the conversation's state, on a thread that may.
  const auto add_generating = [&](const char* path, auto handler) {
    add("POST", path, [handler](Service& s, const std::shared_ptr<Exchange>& e) {
      if (!may_name_conversation(s, e->request())) return handler(s, e);
      if (!s.sharing) {
        name_conversation(s, *e);  // for --strict-conversations
        return handler(s, e);
      }
      const auto work = [&s, handler, e] {
        answer_errors(e, dialect_of(e->request()), [&] {
          name_conversation(s, *e);
          handler(s, e);
        });
      };
      if (!s.sharing->run(work)) {
        ApiError full{429,
                      "the queue is full: too many requests are being prepared",
                      {},
                      "rate_limit_exceeded"};
        full.retry_after_seconds = 1;
        throw full;
      }
    });
  };
  add("GET", "/models", handle_models, true);
  add("GET", "/engine/stats", handle_engine_stats);
  add_generating("/chat/completions", handle_chat_completions);
  add_generating("/messages", handle_anthropic_messages);
  add_generating("/responses", handle_responses);
  add("POST", "/messages/count_tokens", handle_anthropic_count_tokens);
  add_generating("/completions", handle_completions);
  add("POST", "/tokenize", handle_tokenize);
  add("POST", "/detokenize", handle_detokenize);
  return router;
}

void Server::shut_down() {
  if (service_) {
    service_->draining = true;
    spdlog::info("shutting down: running requests have {} s to end", options_.shutdown_seconds);
    if (service_->sharing) service_->sharing->finish();
    service_->engine.drain(options_.shutdown_seconds);
  }
  http_->close();
  const auto deadline = std::chrono::steady_clock::now() + kFlushTime;
  while (http_->connections() > 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

}  // namespace peregrine
