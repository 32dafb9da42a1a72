// The directory in Redis, for servers on different machines.
//
// Owns: two connections, each with a thread: one for operations and this server's heartbeat, one
// for the notices of others. Operations are handed to the first thread and waited for at most the
// time limit. When Redis is down, slow or paused, the connection is dropped and every operation
// answers "unavailable" at once until a new connection stands; attempts back off up to two seconds.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kvshare/directory.h"
#include "kvshare/redis_connection.h"

namespace peregrine {

struct RedisDirectoryOptions {
  RedisAddress address;
  std::string prefix = "peregrine";  // of all keys and of the channel
  std::string owner;                 // this server, another name after every start
  std::chrono::milliseconds limit{50};
  std::chrono::milliseconds alive{5000};  // that a server counts as alive after a heartbeat
  DirectoryNotices notices;
};

class RedisDirectory : public Directory {
 public:
  explicit RedisDirectory(RedisDirectoryOptions options);
  ~RedisDirectory() override;  // takes the heartbeat back if Redis answers

  std::optional<DirectoryRecord> look_up(const std::string& key) override;
  DirectoryClaim claim(const std::string& key, const DirectoryVersion& seen) override;
  DirectoryOutcome check(const std::string& key, const DirectoryVersion& version) override;
  bool available() const override { return state_ == State::kUp; }
  const std::string& owner() const override { return options_.owner; }

 private:
  using Clock = std::chrono::steady_clock;
  using Texts = std::vector<std::string>;
  enum class State { kConnecting, kUp, kDown };
  // Waited for by one caller; abandoned when it has given up.
  struct Job {
    const char* script = nullptr;
    Texts arguments;
    bool done = false, abandoned = false;
    std::optional<Texts> answer;
  };

  std::optional<Texts> run(const char* script, Texts arguments);
  Texts with_record(int keys, const std::string& key) const;
  std::string heartbeat_key() const { return options_.prefix + ":alive:" + options_.owner; }
  void serve();
  void connect(std::unique_lock<std::mutex>& lock);
  void disconnect(std::unique_lock<std::mutex>& lock, const std::string& reason);
  void run_next(std::unique_lock<std::mutex>& lock);
  void beat(std::unique_lock<std::mutex>& lock);
  void note_epoch(const std::string& epoch);
  void listen();
  void take_notice(const Texts& message) const;

  const RedisDirectoryOptions options_;
  std::atomic<State> state_{State::kConnecting};

  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::deque<std::shared_ptr<Job>> jobs_;
  bool stopping_ = false;

  // Of the serving thread.
  std::unique_ptr<RedisConnection> connection_;
  Clock::time_point next_attempt_{}, next_beat_{};
  std::chrono::milliseconds backoff_;
  std::string epoch_;  // last seen

  std::thread server_, listener_;
};

}  // namespace peregrine
