#include "kvshare/redis_directory.h"

#include <pthread.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <utility>

#include "kvshare/redis_scripts.h"
#include "peregrine/error.h"

namespace peregrine {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstBackoff{50}, kLongestBackoff{2000};
constexpr milliseconds kListenWait{200};  // between looks at whether the directory ends
constexpr int kBeatsPerLife = 5;

// The client library writes to sockets whose other end may be gone.
void block_broken_pipe_signal() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

std::optional<uint64_t> number_of(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

milliseconds longer(milliseconds backoff) { return std::min(2 * backoff, kLongestBackoff); }

}  // namespace

RedisDirectory::RedisDirectory(RedisDirectoryOptions options)
    : options_(std::move(options)), backoff_(kFirstBackoff) {
  server_ = std::thread([this] { serve(); });
  listener_ = std::thread([this] { listen(); });
}

RedisDirectory::~RedisDirectory() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  server_.join();
  listener_.join();
}

// -- operations ----------------------------------------------------------------------------------

// Nothing: unavailable.
std::optional<RedisDirectory::Texts> RedisDirectory::run(const char* script, Texts arguments) {
  const auto deadline = Clock::now() + options_.limit;
  const auto job = std::make_shared<Job>();
  job->script = script;
  job->arguments = std::move(arguments);
  std::unique_lock lock(mutex_);
  if (stopping_ || state_ == State::kDown) return std::nullopt;
  jobs_.push_back(job);
  work_.notify_all();
  done_.wait_until(lock, deadline, [&] { return job->done; });
  job->abandoned = true;
  return std::move(job->answer);
}

RedisDirectory::Texts RedisDirectory::with_record(int keys, const std::string& key) const {
  Texts arguments = {std::to_string(keys), options_.prefix + ":epoch",
                     options_.prefix + ":record:" + key};
  if (keys == 3) arguments.push_back(heartbeat_key());
  arguments.insert(arguments.end(), {random_epoch(), std::to_string(kRecordExpirySeconds),
                                     options_.prefix + ":alive:"});
  return arguments;
}

std::optional<DirectoryRecord> RedisDirectory::look_up(const std::string& key) {
  auto answer = run(redis_script::kLookUp, with_record(2, key));
  if (!answer || answer->size() != 3) return std::nullopt;
  const auto sequence = number_of((*answer)[1]);
  if (!sequence) return std::nullopt;
  return DirectoryRecord{.version = {std::move((*answer)[0]), *sequence},
                         .owner = std::move((*answer)[2])};
}

DirectoryClaim RedisDirectory::claim(const std::string& key, const DirectoryVersion& seen) {
  Texts arguments = with_record(3, key);
  arguments.insert(arguments.end(), {seen.epoch, std::to_string(seen.sequence), options_.owner,
                                     std::to_string(options_.alive.count()),
                                     options_.prefix + ":claims", key + " " + options_.owner});
  auto answer = run(redis_script::kClaim, std::move(arguments));
  if (!answer || answer->size() != 2) return {};
  const auto sequence = number_of((*answer)[1]);
  if (!sequence) return {.outcome = DirectoryOutcome::kStale, .version = {}};
  return {.outcome = DirectoryOutcome::kDone, .version = {std::move((*answer)[0]), *sequence}};
}

DirectoryOutcome RedisDirectory::check(const std::string& key, const DirectoryVersion& version) {
  Texts arguments = with_record(2, key);
  arguments.insert(arguments.end(), {version.epoch, std::to_string(version.sequence)});
  const auto answer = run(redis_script::kCheck, std::move(arguments));
  if (!answer || answer->size() != 2) return DirectoryOutcome::kUnavailable;
  return (*answer)[1] == "1" ? DirectoryOutcome::kDone : DirectoryOutcome::kStale;
}

// -- the serving thread --------------------------------------------------------------------------

void RedisDirectory::serve() {
  block_broken_pipe_signal();
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (!connection_) {
      if (Clock::now() >= next_attempt_) {
        connect(lock);
      } else {
        work_.wait_until(lock, next_attempt_, [this] { return stopping_; });
      }
    } else if (Clock::now() >= next_beat_) {
      beat(lock);
    } else if (!jobs_.empty()) {
      run_next(lock);
    } else {
      work_.wait_until(lock, next_beat_, [this] { return stopping_ || !jobs_.empty(); });
    }
  }
  lock.unlock();
  if (!connection_) return;
  try {
    connection_->command({"DEL", heartbeat_key()});
  } catch (const Error&) {  // it expires
  }
}

void RedisDirectory::connect(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  std::string reason;
  try {
    connection_ = std::make_unique<RedisConnection>(options_.address, options_.limit);
    connection_->command({"PING"});
  } catch (const Error& error) {
    connection_.reset();
    reason = error.what();
  }
  lock.lock();
  if (!connection_) return disconnect(lock, reason);
  backoff_ = kFirstBackoff;
  next_beat_ = Clock::now();
  if (state_.exchange(State::kUp) == State::kDown)
    spdlog::info("sharing: Redis at {} answers again", options_.address.name());
}

void RedisDirectory::disconnect(std::unique_lock<std::mutex>&, const std::string& reason) {
  connection_.reset();
  next_attempt_ = Clock::now() + backoff_;
  backoff_ = longer(backoff_);
  for (const auto& job : jobs_) job->done = true;
  jobs_.clear();
  done_.notify_all();
  if (state_.exchange(State::kDown) != State::kDown)
    spdlog::warn("sharing: Redis at {} does not answer ({}); serving goes on without sharing",
                 options_.address.name(), reason);
}

void RedisDirectory::run_next(std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<Job> job = std::move(jobs_.front());
  jobs_.pop_front();
  if (job->abandoned) return;
  lock.unlock();
  std::optional<Texts> answer;
  std::string reason;
  try {
    answer = connection_->script(job->script, job->arguments);
  } catch (const Error& error) {
    reason = error.what();
  }
  if (answer && !answer->empty()) note_epoch(answer->front());
  lock.lock();
  job->done = true;
  const bool failed = !answer;
  job->answer = std::move(answer);
  done_.notify_all();
  if (failed) disconnect(lock, reason);
}

void RedisDirectory::beat(std::unique_lock<std::mutex>& lock) {
  next_beat_ = Clock::now() + options_.alive / kBeatsPerLife;
  lock.unlock();
  std::string reason;
  try {
    connection_->command(
        {"SET", heartbeat_key(), "1", "PX", std::to_string(options_.alive.count())});
  } catch (const Error& error) {
    reason = error.what();
  }
  lock.lock();
  if (!reason.empty()) disconnect(lock, reason);
}

void RedisDirectory::note_epoch(const std::string& epoch) {
  const bool changed = !epoch_.empty() && epoch_ != epoch;
  epoch_ = epoch;
  if (!changed) return;
  spdlog::warn("sharing: the directory has begun anew; what it said before is void");
  if (options_.notices.new_epoch) options_.notices.new_epoch();
}

// -- notices -------------------------------------------------------------------------------------

void RedisDirectory::listen() {
  block_broken_pipe_signal();
  std::unique_ptr<RedisConnection> connection;
  milliseconds backoff = kFirstBackoff;
  const auto ends_within = [this](milliseconds wait) {
    std::unique_lock lock(mutex_);
    return work_.wait_for(lock, wait, [this] { return stopping_; });
  };
  while (!ends_within(milliseconds(0))) {
    try {
      if (!connection) {
        connection = std::make_unique<RedisConnection>(options_.address, options_.limit);
        connection->command({"SUBSCRIBE", options_.prefix + ":claims"});
        backoff = kFirstBackoff;
      }
      if (const auto message = connection->next_message(kListenWait)) take_notice(*message);
    } catch (const Error&) {  // the serving thread reports it
      connection.reset();
      ends_within(std::exchange(backoff, longer(backoff)));
    }
  }
}

void RedisDirectory::take_notice(const Texts& message) const {
  if (message.size() != 3 || message[0] != "message" || !options_.notices.claimed) return;
  const size_t space = message[2].find(' ');
  if (space == std::string::npos) return;
  const std::string owner = message[2].substr(space + 1);
  if (owner != options_.owner) options_.notices.claimed(message[2].substr(0, space), owner);
}

}  // namespace peregrine
