#include "kvshare/redis_connection.h"

#include <hiredis/hiredis.h>
#include <poll.h>

#include <charconv>
#include <utility>

#include "base/fail.h"

namespace peregrine {
namespace {

timeval to_timeval(std::chrono::milliseconds time) {
  return {.tv_sec = time.count() / 1000, .tv_usec = time.count() % 1000 * 1000};
}

int parse_number(const std::string& text, const char* what, int low, int high) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high)
    fail(ErrorKind::kInvalidArgument, "Redis address: {} \"{}\", expected a number from {} to {}",
         what, text, low, high);
  return value;
}

struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};

std::string text_of(const redisReply& reply) {
  switch (reply.type) {
    case REDIS_REPLY_INTEGER:
      return std::to_string(reply.integer);
    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS:
    case REDIS_REPLY_ERROR:
      return {reply.str, reply.len};
    default:
      return {};
  }
}

}  // namespace

RedisAddress RedisAddress::parse(const std::string& url) {
  constexpr const char* kTcp = "redis://";
  constexpr const char* kUnix = "unix:";
  RedisAddress address;
  if (url.starts_with(kUnix)) {
    address.unix_path = url.substr(std::string(kUnix).size());
    if (address.unix_path.empty() || address.unix_path[0] != '/')
      fail(ErrorKind::kInvalidArgument, "Redis address: \"{}\", expected unix:/path", url);
    return address;
  }
  if (!url.starts_with(kTcp))
    fail(ErrorKind::kInvalidArgument,
         "Redis address: expected redis://host:port or unix:/path, found something else");
  std::string rest = url.substr(std::string(kTcp).size());
  if (const size_t at = rest.rfind('@'); at != rest.npos) {
    const std::string login = rest.substr(0, at);
    const size_t colon = login.find(':');
    if (colon == login.npos)
      fail(ErrorKind::kInvalidArgument, "Redis address: expected user:password before the @");
    address.user = login.substr(0, colon);
    address.password = login.substr(colon + 1);
    rest = rest.substr(at + 1);
  }
  if (const size_t slash = rest.find('/'); slash != rest.npos) {
    if (slash + 1 < rest.size())
      address.database = parse_number(rest.substr(slash + 1), "database", 0, 1 << 20);
    rest = rest.substr(0, slash);
  }
  const size_t bracket = rest.rfind(']');  // [::1]:6379
  if (const size_t colon = rest.rfind(':');
      colon != rest.npos && (bracket == rest.npos || colon > bracket)) {
    address.port = parse_number(rest.substr(colon + 1), "port", 1, 65535);
    rest = rest.substr(0, colon);
  }
  if (rest.size() >= 2 && rest.front() == '[' && rest.back() == ']')
    rest = rest.substr(1, rest.size() - 2);
  if (rest.empty()) fail(ErrorKind::kInvalidArgument, "Redis address: a host is missing");
  address.host = rest;
  return address;
}

std::string RedisAddress::name() const {
  return unix_path.empty() ? fmt::format("{}:{}", host, port) : unix_path;
}

void RedisConnection::Free::operator()(redisContext* context) const { redisFree(context); }

RedisConnection::RedisConnection(const RedisAddress& address, std::chrono::milliseconds limit) {
  const timeval time = to_timeval(limit);
  context_.reset(address.unix_path.empty()
                     ? redisConnectWithTimeout(address.host.c_str(), address.port, time)
                     : redisConnectUnixWithTimeout(address.unix_path.c_str(), time));
  if (!context_) fail(ErrorKind::kUnavailable, "Redis: no memory for a connection");
  if (context_->err) give_up(context_->errstr);
  if (redisSetTimeout(context_.get(), time) != REDIS_OK) give_up("no time limit can be set");
  // A subscriber sends nothing, so nothing else would tell it that the other side is gone.
  if (address.unix_path.empty()) redisEnableKeepAlive(context_.get());
  if (!address.password.empty()) {
    std::vector<std::string> auth = {"AUTH"};
    if (!address.user.empty()) auth.push_back(address.user);
    auth.push_back(address.password);
    command(auth);
  }
  if (address.database != 0) command({"SELECT", std::to_string(address.database)});
}

RedisConnection::~RedisConnection() = default;

void RedisConnection::give_up(const std::string& reason) {
  context_.reset();
  fail(ErrorKind::kUnavailable, "Redis: {}", reason);
}

std::vector<std::string> RedisConnection::read_reply() {
  void* raw = nullptr;
  if (redisGetReply(context_.get(), &raw) != REDIS_OK) give_up(context_->errstr);
  const std::unique_ptr<redisReply, FreeReply> reply(static_cast<redisReply*>(raw));
  if (reply->type == REDIS_REPLY_ERROR) fail(ErrorKind::kUnavailable, "Redis: {}", text_of(*reply));
  std::vector<std::string> texts;
  if (reply->type != REDIS_REPLY_ARRAY) return {text_of(*reply)};
  for (size_t i = 0; i < reply->elements; ++i) texts.push_back(text_of(*reply->element[i]));
  return texts;
}

std::vector<std::string> RedisConnection::command(const std::vector<std::string>& arguments) {
  if (!context_) fail(ErrorKind::kUnavailable, "Redis: the connection is closed");
  std::vector<const char*> data;
  std::vector<size_t> sizes;
  for (const std::string& argument : arguments) {
    data.push_back(argument.data());
    sizes.push_back(argument.size());
  }
  if (redisAppendCommandArgv(context_.get(), static_cast<int>(data.size()), data.data(),
                             sizes.data()) != REDIS_OK)
    give_up(context_->errstr);
  return read_reply();
}

std::vector<std::string> RedisConnection::script(const char* source,
                                                 std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"EVALSHA", {}});
  for (const bool again : {false, true}) {
    std::string& sha = shas_[source];
    if (sha.empty()) sha = command({"SCRIPT", "LOAD", source}).at(0);
    arguments[1] = sha;
    try {
      return command(arguments);
    } catch (const Error& error) {
      // A restart or SCRIPT FLUSH has dropped it.
      if (again || std::string(error.what()).find("NOSCRIPT") == std::string::npos) throw;
      sha.clear();
    }
  }
  return {};
}

std::optional<std::vector<std::string>> RedisConnection::next_message(
    std::chrono::milliseconds wait) {
  if (!context_) fail(ErrorKind::kUnavailable, "Redis: the connection is closed");
  void* buffered = nullptr;
  if (redisGetReplyFromReader(context_.get(), &buffered) != REDIS_OK) give_up(context_->errstr);
  std::unique_ptr<redisReply, FreeReply> reply(static_cast<redisReply*>(buffered));
  if (!reply) {
    pollfd readable{.fd = context_->fd, .events = POLLIN, .revents = 0};
    if (poll(&readable, 1, static_cast<int>(wait.count())) <= 0) return std::nullopt;
    return read_reply();
  }
  std::vector<std::string> texts;
  for (size_t i = 0; i < reply->elements; ++i) texts.push_back(text_of(*reply->element[i]));
  return texts;
}

}  // namespace peregrine
