#include "server/api_error.h"

#include "server/json_writer.h"

namespace peregrine {
namespace {

const char* openai_type(int status) {
  if (status == 401) return "authentication_error";
  if (status == 403) return "permission_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

const char* anthropic_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
    case 529:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

std::string field_of(const std::string& sentence) {
  size_t end = 0;
  bool has_letter = false;
  for (; end < sentence.size(); ++end) {
    const char c = sentence[end];
    const bool letter = (c >= 'a' && c <= 'z') || c == '_';
    has_letter |= letter;
    if (!letter && !(c >= '0' && c <= '9') && c != '.' && c != '[' && c != ']') break;
  }
  // A field is followed by what was found: "messages[0].role is ...", "top_p: ...".
  const std::string_view rest = std::string_view(sentence).substr(end);
  const bool named = rest.starts_with(" is ") || rest.starts_with(": ") ||
                     rest.starts_with(" names ") || rest.starts_with(" asks ") ||
                     rest.starts_with(" of ") || rest.starts_with(" holds ");
  return has_letter && named ? sentence.substr(0, end) : std::string();
}

ApiError to_api_error(const Error& error) {
  switch (error.kind()) {
    case ErrorKind::kInvalidArgument:
      return {400, error.what(), field_of(error.what()), "invalid_value"};
    case ErrorKind::kUnavailable: {
      ApiError busy{429, error.what(), {}, "queue_full"};
      busy.retry_after_seconds = 1;
      return busy;
    }
    case ErrorKind::kOutOfMemory: {
      ApiError full{503, "the server is out of memory for this request", {}, "overloaded"};
      full.retry_after_seconds = 5;
      return full;
    }
    default:
      return {500, "internal error", {}, "internal_error"};
  }
}

std::string error_json(const ApiError& error, Dialect dialect) {
  JsonWriter w;
  w.begin_object();
  if (dialect == Dialect::kAnthropic) {
    w.member("type", "error").key("error").begin_object();
    w.member("type", anthropic_type(error.status)).member("message", error.message);
    return w.end_object().end_object().take();
  }
  w.key("error").begin_object().member("message", error.message);
  w.member("type", openai_type(error.status));
  w.key("param");
  error.param.empty() ? w.null() : w.value(error.param);
  w.key("code");
  error.code.empty() ? w.null() : w.value(error.code);
  return w.end_object().end_object().take();
}

HttpResponse error_response(const ApiError& error, Dialect dialect) {
  HttpResponse response{.status = error.status, .body = error_json(error, dialect)};
  if (error.retry_after_seconds > 0)
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_seconds));
  return response;
}

}  // namespace peregrine
