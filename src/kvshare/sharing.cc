#include "kvshare/sharing.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "peregrine/error.h"

namespace peregrine {
namespace {

// Fewer tokens than this cost less to compute than to ask for.
constexpr int64_t kMinGain = 16;
constexpr double kAssumedLink = 1e9;          // bytes a second, before the first fetch
constexpr double kMeasuredBytes = 64 * 1024;  // smaller fetches say nothing about the link
constexpr auto kReclaimRetry = std::chrono::seconds(1);
constexpr int kLongestPause = 30;  // times SharingOptions::owner_pause
constexpr const char* kUnknownEpoch = "00000000-0000-0000-0000-000000000000";

// Another name after every start: what an earlier life of this address owned is gone.
std::string owner_name(const std::string& address) {
  std::random_device random;
  return fmt::format("{}#{:08x}{:08x}", address, random(), random());
}

std::string address_of(const std::string& owner) { return owner.substr(0, owner.find('#')); }

}  // namespace

const char* source_name(StateSource source) {
  switch (source) {
    case StateSource::kNone:
      return "none";
    case StateSource::kEngine:
      return "engine";
    case StateSource::kVault:
      return "vault";
    case StateSource::kRemote:
      return "remote";
  }
  return "";
}

Sharing::Sharing(Engine& engine, StateVault& vault, const MakeDirectory& make_directory,
                 SharingOptions options)
    : engine_(engine), vault_(vault), options_(std::move(options)), shape_(engine.state_shape()) {
  for (auto outcome = FetchOutcome::kAbsent; outcome <= FetchOutcome::kCancelled;
       outcome = static_cast<FetchOutcome>(static_cast<int>(outcome) + 1))
    stats_.fetch_failures[outcome_name(outcome)] = 0;  // to be seen before the first
  DirectoryNotices notices;
  // The state moved on: the older one here would only take room.
  notices.claimed = [this](const std::string& key, const std::string&) { vault_.drop(key); };
  notices.new_epoch = [this] {
    const std::lock_guard lock(mutex_);
    reclaim_all_ = true;
    keeper_.notify_all();
  };
  directory_ = make_directory(owner_name(options_.address), std::move(notices));
  for (int i = 0; i < options_.max_prepared; ++i) threads_.emplace_back([this] { prepare_loop(); });
  threads_.emplace_back([this] { keep_claims(); });
}

Sharing::~Sharing() {
  finish();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  keeper_.notify_all();
  held_changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  directory_.reset();
}

// -- threads -------------------------------------------------------------------------------------

bool Sharing::run(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || std::ssize(queue_) >= options_.max_waiting) return false;
    queue_.push_back(std::move(work));
  }
  work_.notify_one();
  return true;
}

void Sharing::finish() {
  std::unique_lock lock(mutex_);
  closed_ = true;
  held_changed_.notify_all();
  idle_.wait(lock, [this] { return queue_.empty() && working_ == 0; });
}

void Sharing::prepare_loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    ++working_;
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
    --working_;
    idle_.notify_all();
  }
}

// Announces states that have no living owner: those found in files at the start, and all of them
// when the directory has begun anew.
void Sharing::keep_claims() {
  std::unique_lock lock(mutex_);
  while (true) {
    keeper_.wait(lock, [this] { return stopping_ || reclaim_all_; });
    if (stopping_) return;
    reclaim_all_ = false;
    lock.unlock();
    bool all = true;
    for (const VaultEntry& entry : vault_.entries()) all = all && reclaim(entry.key);
    lock.lock();
    if (all) continue;
    reclaim_all_ = true;
    if (keeper_.wait_for(lock, kReclaimRetry, [this] { return stopping_; })) return;
  }
}

// False: the directory does not answer.
bool Sharing::reclaim(const std::string& key) {
  const auto record = look_up(key);
  if (!record) return false;
  if (record->owner == directory_->owner()) return true;
  if (!record->owner.empty()) {
    vault_.drop(key);
    return true;
  }
  const DirectoryClaim claim = directory_->claim(key, record->version);
  if (claim.outcome == DirectoryOutcome::kUnavailable) return false;
  if (claim.outcome == DirectoryOutcome::kDone) {
    vault_.relabel(key, claim.version);
    const std::lock_guard lock(mutex_);
    ++stats_.reclaimed;
  }
  return true;
}

// -- before a request ----------------------------------------------------------------------------

std::optional<DirectoryRecord> Sharing::look_up(const std::string& key) {
  auto record = directory_->look_up(key);
  if (!record) {
    const std::lock_guard lock(mutex_);
    ++stats_.directory_failures;
  }
  return record;
}

// Whether reading the state of so many tokens takes less time than computing those that are not
// cached.
bool Sharing::worth_fetching(int64_t tokens, int64_t cached) const {
  if (tokens - cached < kMinGain) return false;
  const EngineStats engine = engine_.stats();
  if (engine.prompt_tokens < 1000 || engine.device_busy_seconds <= 0) return true;  // unknown
  const double compute = static_cast<double>(tokens - cached) *
                         (engine.device_busy_seconds / static_cast<double>(engine.prompt_tokens));
  const auto bytes = static_cast<double>(shape_.row_bytes(tokens) + shape_.recent_bytes);
  const std::lock_guard lock(mutex_);
  return bytes / (link_bytes_per_second_ > 0 ? link_bytes_per_second_ : kAssumedLink) < compute;
}

// An owner that is cut off would cost every request of its conversations the deadline, and those
// that wait behind them too.
bool Sharing::is_paused(const std::string& address) const {
  const std::lock_guard lock(mutex_);
  const auto at = pauses_.find(address);
  return at != pauses_.end() && std::chrono::steady_clock::now() < at->second.until;
}

// With the lock.
void Sharing::judge_owner(const std::string& address, bool fault) {
  if (!fault) {
    pauses_.erase(address);
    return;
  }
  Pause& pause = pauses_[address];
  const auto now = std::chrono::steady_clock::now();
  if (now < pause.until) return;  // several requests found out at once
  pause.length =
      std::clamp(2 * pause.length, options_.owner_pause, kLongestPause * options_.owner_pause);
  pause.until = now + pause.length;
}

PinnedImage Sharing::fetch(const std::string& key, const DirectoryRecord& record,
                           std::span<const int32_t> prompt, int64_t min_tokens) {
  {
    const std::lock_guard lock(mutex_);
    for (const Fetched& recent : recent_fetches_) {
      if (recent.key == key && recent.version == record.version &&
          recent.image->manifest().common_prefix(prompt) <= recent.image->held())
        return recent.image;
    }
  }
  const std::string address = address_of(record.owner);
  FetchedState got;
  if (is_paused(address))
    got.failure = "paused";
  else
    got = options_.fetch(address, key, prompt, min_tokens);
  if (!got.message.empty())
    spdlog::log(got.owner_fault || got.failure == outcome_name(FetchOutcome::kDamaged)
                    ? spdlog::level::warn
                    : spdlog::level::info,
                "sharing: no state from {}: {} ({})", address, got.failure, got.message);
  const std::lock_guard lock(mutex_);
  if (got.failure != "paused") judge_owner(address, got.owner_fault);
  stats_.fetched_bytes += got.bytes;
  stats_.fetch_seconds += got.seconds;
  if (!got.image) {
    ++stats_.fetch_failures[got.failure];
    return nullptr;
  }
  if (const auto bytes = static_cast<double>(got.bytes);
      bytes > kMeasuredBytes && got.seconds > 0) {
    double& link = link_bytes_per_second_;
    link = link == 0 ? bytes / got.seconds : 0.8 * link + 0.2 * bytes / got.seconds;
  }
  std::erase_if(recent_fetches_, [&](const Fetched& recent) { return recent.key == key; });
  recent_fetches_.push_front({key, record.version, got.image});
  if (std::ssize(recent_fetches_) > options_.max_prepared) recent_fetches_.pop_back();
  return got.image;
}

Sharing::Found Sharing::find(const std::string& key, const std::optional<DirectoryRecord>& record,
                             std::span<const int32_t> prompt, int64_t cached) {
  const auto length = static_cast<int64_t>(prompt.size());
  const bool elsewhere =
      record && !record->owner.empty() && record->owner != directory_->owner() && options_.fetch;
  if (elsewhere) {
    if (worth_fetching(length, cached)) {
      if (PinnedImage image = fetch(key, *record, prompt, cached + kMinGain))
        return {.image = std::move(image), .remote = true};
    } else if (length - cached >= kMinGain) {
      const std::lock_guard lock(mutex_);
      ++stats_.recompute_chosen;
    }
  }
  return {.image = vault_.pin(key)};
}

std::vector<int32_t> Sharing::known_tokens(const std::string& key,
                                           std::span<const int32_t> prompt) {
  const Found found = find(key, look_up(key), prompt, 0);
  return found.image ? found.image->manifest().tokens() : std::vector<int32_t>();
}

// Counts the state as waiting for as long as anybody holds it; waits while too many do.
std::shared_ptr<const SavedState> Sharing::hold(SavedState state) {
  {
    std::unique_lock lock(mutex_);
    held_changed_.wait(lock, [this] { return closed_ || held_ < options_.max_prepared; });
    ++held_;
  }
  return {new SavedState(std::move(state)), [this](const SavedState* s) {
            delete s;
            const std::lock_guard lock(mutex_);
            --held_;
            held_changed_.notify_all();
          }};
}

// Memory is believed no more than a disk or a network; one hash costs little beside a wrong token.
bool Sharing::is_intact(const std::string& key, const StateImage& image, int64_t prefix) {
  if (image.intact(prefix)) return true;
  spdlog::warn("sharing: a state of {} tokens in memory is damaged and dropped", image.held());
  vault_.drop(key);
  const std::lock_guard lock(mutex_);
  ++stats_.damaged_in_memory;
  return false;
}

StateSource Sharing::prepare(const std::string& key, Request& request) {
  const auto record = look_up(key);
  std::optional<DirectoryVersion> seen;
  if (record) seen = record->version;
  request.on_state = [this, key, seen](const std::shared_ptr<const SavedState>& state) {
    publish(key, seen, *state);
  };
  const int64_t cached = engine_.cached_tokens(request.prompt);
  const Found found = find(key, record, request.prompt, cached);
  const int64_t prefix =
      found.image
          ? std::min(found.image->held(), found.image->manifest().common_prefix(request.prompt))
          : 0;
  if (prefix >= cached + kMinGain && (found.remote || is_intact(key, *found.image, prefix)))
    request.state = hold(found.image->state(prefix));
  const StateSource source = request.state
                                 ? found.remote ? StateSource::kRemote : StateSource::kVault
                             : cached > 0 ? StateSource::kEngine
                                          : StateSource::kNone;
  const std::lock_guard lock(mutex_);
  std::erase_if(recent_fetches_, [&](const Fetched& recent) { return recent.key == key; });
  ++stats_.requests[static_cast<size_t>(source)];
  return source;
}

// -- after a request -----------------------------------------------------------------------------

void Sharing::publish(const std::string& key, std::optional<DirectoryVersion> seen,
                      const SavedState& state) {
  try {
    if (!seen) {
      if (const auto record = look_up(key)) seen = record->version;
    }
    // Into the vault first: who learns of the claim may ask at once.
    const DirectoryVersion next = seen ? DirectoryVersion{seen->epoch, seen->sequence + 1}
                                       : DirectoryVersion{kUnknownEpoch, 0};
    const bool kept = vault_.put(key, next, StateImage::build(state, shape_));
    DirectoryClaim claim;
    if (seen && kept) claim = directory_->claim(key, *seen);
    if (claim.outcome == DirectoryOutcome::kStale) {
      {
        const std::lock_guard lock(mutex_);
        ++stats_.stale;
      }
      // Lost to another server, unless the directory began anew or that server is gone.
      const auto record = look_up(key);
      if (record && (record->owner.empty() || record->owner == directory_->owner())) {
        claim = directory_->claim(key, record->version);
        if (claim.outcome == DirectoryOutcome::kDone) vault_.relabel(key, claim.version);
      } else if (record) {
        vault_.drop(key);
      }
    }
    const std::lock_guard lock(mutex_);
    ++(claim.outcome == DirectoryOutcome::kDone ? stats_.claims : stats_.unpublished);
  } catch (const std::exception& error) {
    spdlog::warn("sharing: a state of {} tokens is not kept: {}", state.length(), error.what());
    const std::lock_guard lock(mutex_);
    ++stats_.unpublished;
  }
}

SharingStats Sharing::stats() const {
  SharingStats stats;
  {
    const std::lock_guard lock(mutex_);
    stats = stats_;
    stats.prepared = held_;
  }
  if (options_.serving) stats.serving = options_.serving();
  if (options_.fetch_memory) stats.fetch_memory_bytes = options_.fetch_memory();
  stats.directory_available = directory_->available();
  stats.vault = vault_.stats();
  return stats;
}

}  // namespace peregrine
