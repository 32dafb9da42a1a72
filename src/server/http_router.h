// Paths to handlers, with the checks that come before any of them.
//
// Every path is served with and without "/v1" in front, and below "/anthropic" and "/beta", where
// the hosted service has some of them. Errors that a handler throws become the answer, in the
// dialect of its path.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "server/api_error.h"
#include "server/auth.h"

namespace peregrine {

struct Route {
  std::string method;  // "GET" answers HEAD as well
  std::string path;    // without "/v1"
  HttpHandler handle;
  Dialect dialect = Dialect::kOpenAi;
  bool open = false;       // needs no key
  bool with_rest = false;  // "/models" also takes "/models/NAME"
};

class HttpRouter {
 public:
  explicit HttpRouter(Auth auth) : auth_(std::move(auth)) {}
  void add(Route route) { routes_.push_back(std::move(route)); }

  // Never throws.
  void handle(const std::shared_ptr<Exchange>& exchange) const;

  // The part of a path that its route is found by: "/v1/models/x" gives "/models/x".
  static std::string plain_path(const std::string& path);

 private:
  const Route& find(const HttpRequest& request) const;

  const Auth auth_;
  std::vector<Route> routes_;
};

// Runs work that answers the exchange; what it throws becomes the answer, in a dialect that the
// work may still change. Never throws.
void answer_errors(const std::shared_ptr<Exchange>& exchange, const Dialect& dialect,
                   const std::function<void()>& work);

// For errors outside any route: Anthropic's when the request has its headers or path.
Dialect dialect_of(const HttpRequest& request);

}  // namespace peregrine
