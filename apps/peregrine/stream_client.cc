#include "stream_client.h"
// clang-format off
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http.hpp>
// clang-format on

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "engine/device.h"

namespace peregrine {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using Parser = http::response_parser<http::string_body>;

}  // namespace

ServerAddress parse_address(const std::string& url) {
  std::string_view rest = url;
  if (rest.starts_with("http://")) rest.remove_prefix(7);
  while (rest.ends_with('/')) rest.remove_suffix(1);
  ServerAddress address;
  const size_t colon = rest.rfind(':');
  address.host = rest.substr(0, colon);
  bool ok = !address.host.empty() && rest.find('/') == rest.npos;
  if (colon != rest.npos) {
    const char* end = rest.data() + rest.size();
    const auto [at, error] = std::from_chars(rest.data() + colon + 1, end, address.port);
    ok = ok && error == std::errc() && at == end && address.port > 0 && address.port < 65536;
  }
  if (!ok)
    fail(ErrorKind::kInvalidArgument, "--url {}: expected an address as http://127.0.0.1:8000",
         url);
  return address;
}

StreamedText read_stream(const StreamedAnswer& answer) {
  StreamedText result;
  if (answer.status != 200) {
    result.error = fmt::format("status {}: {}", answer.status, answer.body.substr(0, 200));
    return result;
  }
  bool done = false;
  size_t at = 0;
  for (size_t end; (end = answer.body.find("\n\n", at)) != answer.body.npos; at = end + 2) {
    std::string_view event = std::string_view(answer.body).substr(at, end - at);
    if (event.starts_with(':')) continue;  // keeps the connection alive
    if (!event.starts_with("data: ") || done) {
      result.error = "an event that does not belong into the stream";
      return result;
    }
    event.remove_prefix(6);
    if (event == "[DONE]") {
      done = true;
      continue;
    }
    const auto chunk = nlohmann::json::parse(event, nullptr, /*allow_exceptions=*/false);
    if (!chunk.is_object() || !chunk.contains("choices")) {
      result.error = fmt::format("the stream holds {}", event.substr(0, 200));
      return result;
    }
    for (const auto& choice : chunk["choices"]) {
      result.text += choice["text"].get_ref<const std::string&>();
      if (choice["finish_reason"].is_string()) result.finish = choice["finish_reason"];
    }
    if (chunk.contains("usage") && chunk["usage"].is_object())
      result.tokens = chunk["usage"]["completion_tokens"];
  }
  if (!answer.complete || !done || at != answer.body.size()) result.error = "the stream is cut";
  return result;
}

asio::awaitable<void> StreamClient::connect(const ServerAddress& address) {
  host_ = address.host;
  asio::ip::tcp::resolver resolver(socket_.get_executor());
  const auto found = co_await resolver.async_resolve(address.host, std::to_string(address.port),
                                                     asio::use_awaitable);
  co_await socket_.async_connect(*found.begin(), asio::use_awaitable);
  socket_.set_option(asio::ip::tcp::no_delay(true));
}

asio::awaitable<StreamedAnswer> StreamClient::ask(const std::string& json) {
  StreamedAnswer answer{.begin_us = now_us()};
  const std::string request = fmt::format(
      "POST /v1/completions HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n"
      "Content-Length: {}\r\n\r\n{}",
      host_, json.size(), json);
  co_await asio::async_write(socket_, asio::buffer(request), asio::use_awaitable);
  Parser parser;
  parser.body_limit(boost::none);
  co_await http::async_read_header(socket_, buffer_, parser, asio::use_awaitable);
  answer.status = static_cast<int>(parser.get().result_int());
  while (!parser.is_done()) {
    co_await http::async_read_some(socket_, buffer_, parser, asio::use_awaitable);
    if (answer.first_us == 0 && !parser.get().body().empty()) answer.first_us = now_us();
  }
  answer.end_us = now_us();
  answer.complete = true;
  answer.body = std::move(parser.get().body());
  co_return answer;
}

asio::awaitable<std::string> StreamClient::get(const std::string& path) {
  const std::string request = fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", path, host_);
  co_await asio::async_write(socket_, asio::buffer(request), asio::use_awaitable);
  Parser parser;
  parser.body_limit(boost::none);
  co_await http::async_read(socket_, buffer_, parser, asio::use_awaitable);
  co_return std::move(parser.get().body());
}

}  // namespace peregrine
