#include "server/http_parser.h"

#include <utility>  // Boost 1.81 needs it first
// clang-format off: the line above stays above
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
// clang-format on

#include <fmt/format.h>

namespace peregrine {

namespace http = boost::beast::http;

struct HttpParser::Beast {
  http::request_parser<http::string_body> parser;
};

HttpParser::HttpParser(const HttpLimits& limits)
    : beast_(std::make_unique<Beast>()), limits_(limits) {
  beast_->parser.eager(true);
  beast_->parser.header_limit(static_cast<std::uint32_t>(limits.header_bytes));
  beast_->parser.body_limit(limits.body_bytes);
}

HttpParser::~HttpParser() = default;

void HttpParser::fail(int status, std::string sentence) {
  state_ = State::kFailed;
  error_status_ = status;
  error_ = std::move(sentence);
}

size_t HttpParser::feed(std::string_view bytes) {
  auto& parser = beast_->parser;
  size_t taken = 0;
  while (state_ == State::kHeader || state_ == State::kBody) {
    boost::beast::error_code error;
    const size_t n =
        parser.put(boost::asio::buffer(bytes.data() + taken, bytes.size() - taken), error);
    taken += n;
    if (error && error != http::error::need_more) {
      if (error == http::error::body_limit) {
        fail(413, fmt::format("the body is longer than {} bytes", limits_.body_bytes));
      } else if (error == http::error::header_limit || error == http::error::buffer_overflow) {
        fail(431, fmt::format("the headers are longer than {} bytes", limits_.header_bytes));
      } else {
        fail(400, fmt::format("malformed HTTP request: {}", error.message()));
      }
      break;
    }
    if (state_ == State::kHeader && parser.is_header_done()) {
      check_header();
      if (state_ == State::kFailed) break;
      state_ = State::kBody;
    }
    if (parser.is_done()) state_ = State::kComplete;
    if (n == 0 || error == http::error::need_more) break;
  }
  return taken;
}

void HttpParser::check_header() {
  const auto& message = beast_->parser.get();
  const auto coding = message.find(http::field::transfer_encoding);
  if (coding != message.end() && !boost::beast::iequals(coding->value(), "chunked"))
    return fail(501, "Transfer-Encoding is not understood, expected chunked or a Content-Length");
  if (message.count(http::field::transfer_encoding) > 1)
    return fail(400, "Transfer-Encoding is given more than once");
  if (message.version() >= 11 && message.count(http::field::host) != 1)
    return fail(400, "expected exactly one Host header");
  const auto target = message.target();
  if (target.empty() || target[0] != '/')
    return fail(400, "the request target does not start with '/'");
  const auto expect = message.find(http::field::expect);
  if (expect == message.end()) return;
  if (!boost::beast::iequals(expect->value(), "100-continue"))
    return fail(417, "Expect holds something else than 100-continue");
  expects_continue_ = true;
}

bool HttpParser::take_expectation() { return std::exchange(expects_continue_, false); }

HttpRequest HttpParser::take_request() {
  auto& message = beast_->parser.get();
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string_view target = message.target();
  const size_t mark = target.find('?');
  request.path = std::string(target.substr(0, mark));
  if (mark != target.npos) request.query = std::string(target.substr(mark + 1));
  for (const auto& field : message)
    request.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  request.keep_alive = message.keep_alive();
  request.chunked_answers = message.version() >= 11;
  request.body = std::move(message.body());
  return request;
}

}  // namespace peregrine
