// A redis-server of a test's own, on a unix socket in a temporary folder, without persistence.
#pragma once

#include <gtest/gtest.h>
#include <hiredis/hiredis.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>

#include "kvshare/redis_connection.h"
#include "peregrine/error.h"

namespace peregrine::test {

class RedisServer {
 public:
  RedisServer() {
    std::string pattern = (std::filesystem::temp_directory_path() / "peregrine-redis-XXXXXX");
    folder_ = mkdtemp(pattern.data());
    start();
  }
  ~RedisServer() {
    stop();
    std::filesystem::remove_all(folder_);
  }
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  std::string url() const { return "unix:" + folder_ + "/socket"; }
  RedisAddress address() const { return RedisAddress::parse(url()); }

  // Returns once it answers.
  void start() {
    const std::string socket = folder_ + "/socket";
    pid_ = fork();
    if (pid_ == 0) {
      execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", socket.c_str(),
             "--save", "", "--appendonly", "no", "--dir", folder_.c_str(), "--logfile",
             (folder_ + "/log").c_str(), "--daemonize", "no", nullptr);
      _exit(127);
    }
    while (true) {
      int status = 0;
      ASSERT_EQ(waitpid(pid_, &status, WNOHANG), 0) << "redis-server did not start";
      try {
        RedisConnection(address(), std::chrono::milliseconds(2000)).command({"PING"});
        return;
      } catch (const Error&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    }
  }
  void stop() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  void restart_empty() {
    stop();
    start();
  }
  void pause() { kill(pid_, SIGSTOP); }
  void resume() { kill(pid_, SIGCONT); }

  std::vector<std::string> command(const std::vector<std::string>& words) const {
    return RedisConnection(address(), std::chrono::seconds(10)).command(words);
  }

 private:
  std::string folder_;
  pid_t pid_ = -1;
};

// Polls: for what another thread or process does soon.
template <typename Condition>
void wait_until(const Condition& condition) {
  while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

}  // namespace peregrine::test
