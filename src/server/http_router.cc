#include "server/http_router.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

namespace peregrine {
namespace {

bool strip(std::string_view& path, std::string_view prefix) {
  if (!path.starts_with(prefix) || (path.size() > prefix.size() && path[prefix.size()] != '/'))
    return false;
  path.remove_prefix(prefix.size());
  return true;
}

}  // namespace

std::string HttpRouter::plain_path(const std::string& path) {
  std::string_view rest = path;
  if (!strip(rest, "/anthropic")) strip(rest, "/beta");
  strip(rest, "/v1");
  while (rest.size() > 1 && rest.back() == '/') rest.remove_suffix(1);
  return rest.empty() ? "/" : std::string(rest);
}

Dialect dialect_of(const HttpRequest& request) {
  const bool anthropic = request.header("anthropic-version") ||
                         HttpRouter::plain_path(request.path).starts_with("/messages");
  return anthropic ? Dialect::kAnthropic : Dialect::kOpenAi;
}

const Route& HttpRouter::find(const HttpRequest& request) const {
  const std::string path = plain_path(request.path);
  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  std::string allowed;
  for (const Route& route : routes_) {
    const bool here = path == route.path || (route.with_rest && path.starts_with(route.path + "/"));
    if (!here) continue;
    if (method == route.method) return route;
    allowed = route.method;
  }
  if (allowed.empty())
    throw ApiError(404, fmt::format("{} is no path of this server", request.path.substr(0, 200)),
                   {}, "not_found");
  throw ApiError(405,
                 fmt::format("{} does not take {}, expected {}", request.path.substr(0, 200),
                             request.method.substr(0, 20), allowed),
                 {}, "method_not_allowed");
}

void HttpRouter::handle(const std::shared_ptr<Exchange>& exchange) const {
  const HttpRequest& request = exchange->request();
  Dialect dialect = dialect_of(request);
  answer_errors(exchange, dialect, [&] {
    const Route& route = find(request);
    if (route.dialect == Dialect::kAnthropic) dialect = route.dialect;
    if (!route.open && !auth_.allows(request))
      throw ApiError(401, "the API key is missing or wrong", {}, "invalid_api_key");
    route.handle(exchange);
  });
}

void answer_errors(const std::shared_ptr<Exchange>& exchange, const Dialect& dialect,
                   const std::function<void()>& work) {
  const HttpRequest& request = exchange->request();
  try {
    work();
  } catch (const ApiError& error) {
    exchange->respond(error_response(error, dialect));
  } catch (const Error& error) {
    const ApiError answer = to_api_error(error);
    if (answer.status >= 500) spdlog::error("{}: {}", request.path, error.what());
    exchange->respond(error_response(answer, dialect));
  } catch (const std::bad_alloc&) {
    exchange->respond(
        error_response({503, "the server is out of memory", {}, "overloaded"}, dialect));
  } catch (const std::exception& error) {
    spdlog::error("{}: {}", request.path, error.what());
    exchange->respond(error_response({500, "internal error", {}, "internal_error"}, dialect));
  }
}

}  // namespace peregrine
