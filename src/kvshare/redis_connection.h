// One connection to Redis with a time limit on everything that can block.
//
// Owns: the address, connecting, authentication, commands and scripts. After any failure the
// connection is unusable: an answer that comes late must not be taken for the next one's. Not
// thread-safe.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

struct redisContext;

namespace peregrine {

struct RedisAddress {
  std::string host;  // or
  std::string unix_path;
  int port = 6379;
  int database = 0;
  std::string user, password;  // empty: none

  // redis://[user:password@]host[:port][/database] or unix:/path. Throws Error(kInvalidArgument);
  // the message never holds the password.
  static RedisAddress parse(const std::string& url);
  std::string name() const;  // for messages and logs
};

class RedisConnection {
 public:
  // Throws Error(kUnavailable) with the reason; takes at most a few times `limit` (a name that must
  // be resolved may take longer).
  RedisConnection(const RedisAddress& address, std::chrono::milliseconds limit);
  ~RedisConnection();

  // The strings of an array answer, or the one string, number or status as a list of one. Throws
  // Error(kUnavailable) on a lost connection, a late answer or an error that Redis reports.
  std::vector<std::string> command(const std::vector<std::string>& arguments);
  // The same for a script, by its SHA; `arguments`: the number of keys, keys, arguments.
  std::vector<std::string> script(const char* source, std::vector<std::string> arguments);

  // The next message of a subscription; nothing: none came in time.
  std::optional<std::vector<std::string>> next_message(std::chrono::milliseconds wait);

 private:
  struct Free {
    void operator()(redisContext* context) const;
  };
  [[noreturn]] void give_up(const std::string& reason);
  std::vector<std::string> read_reply();

  std::unique_ptr<redisContext, Free> context_;
  std::unordered_map<const char*, std::string> shas_;
};

}  // namespace peregrine
