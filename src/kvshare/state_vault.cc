#include "kvshare/state_vault.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cassert>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/fail.h"
#include "kvshare/state_file.h"
#include "kvshare/state_file_name.h"

namespace peregrine {
namespace {

namespace fs = std::filesystem;

void check_name(const std::string& key, const DirectoryVersion& version) {
  if (const std::string why = misnamed(key, version); !why.empty())
    fail(ErrorKind::kInvalidArgument, "{}", why);
}

}  // namespace

// The books. An entry is in index_ until something replaces, evicts or loses it; then it is
// `gone` and lives on for its readers only.
//
//   memory_order_   entries with an image, by last use; their bytes are in memory_bytes_
//   disk_order_     entries with a file, by last use; their bytes are in disk_bytes_
//   busy            a thread reads or writes the entry's file without the lock: nobody else touches
//                   the file or takes the entry out of the index, so that no two entries ever mean
//                   the same file; an entry that is being read in has no image yet
class StateVault::Core : public std::enable_shared_from_this<StateVault::Core> {
 public:
  explicit Core(VaultOptions options)
      : options_(std::move(options)), engine_(engine_name(options_.shape.fingerprint)) {
    if (options_.directory.empty()) return;
    std::error_code error;
    fs::create_directories(options_.directory, error);
    if (!error && fs::is_directory(options_.directory, error)) {
      scan();
      return;
    }
    spdlog::warn("state vault: {} cannot hold files ({}), states stay in memory",
                 options_.directory, error ? error.message() : "not a directory");
    ++stats_.failures;
    options_.directory.clear();
  }

  const StateShape& shape() const { return options_.shape; }

  bool put(const std::string& key, const DirectoryVersion& version, StateImage image);
  PinnedImage pin(const std::string& key);
  std::optional<VaultEntry> find(const std::string& key) const;
  std::vector<VaultEntry> entries() const;
  bool relabel(const std::string& key, const DirectoryVersion& version);
  void drop(const std::string& key);
  void flush();
  VaultStats stats() const;

 private:
  struct Entry {
    StateFileName label;
    int64_t tokens = 0;
    uint64_t bytes = 0;
    std::unique_ptr<const StateImage> image;
    std::string path;  // empty: no file
    uint64_t memory_stamp = 0, disk_stamp = 0;
    int pins = 0;
    bool busy = false;
    bool gone = false;
  };
  using EntryPtr = std::shared_ptr<Entry>;
  using Lock = std::unique_lock<std::mutex>;

  void scan();
  std::string path_of(const StateFileName& label) const {
    return options_.directory + "/" + label.text();
  }

  // All of these are called with the lock; those that take it may let go of it meanwhile.
  void use(const EntryPtr& entry);
  bool reserve_memory(uint64_t bytes, Lock& lock);
  bool reserve_disk(uint64_t bytes);
  bool write_file(const EntryPtr& entry, const StateImage& image, Lock& lock);
  void add_image(const EntryPtr& entry, std::unique_ptr<const StateImage> image);
  std::unique_ptr<const StateImage> take_image(const EntryPtr& entry);
  void forget_file(const EntryPtr& entry);
  void remove_entry(const EntryPtr& entry, Lock& lock);
  void clean_up(const EntryPtr& entry, Lock& lock);
  void lose(const EntryPtr& entry, const std::string& path, const char* why);
  PinnedImage pinned(const EntryPtr& entry);
  void unpin(const EntryPtr& entry);
  static VaultEntry describe(const Entry& entry);

  VaultOptions options_;
  const std::string engine_;  // in file names
  mutable std::mutex mutex_;
  std::condition_variable changed_;  // an entry is no longer busy
  std::unordered_map<std::string, EntryPtr> index_;
  std::map<uint64_t, EntryPtr> memory_order_, disk_order_;  // by stamp
  uint64_t clock_ = 0;
  uint64_t memory_bytes_ = 0;  // of images, and reserved for those being read
  uint64_t disk_bytes_ = 0;
  int evictions_running_ = 0;
  VaultStats stats_;  // its counters; the gauges are filled in by stats()
};

// -- books ---------------------------------------------------------------------------------------

void StateVault::Core::use(const EntryPtr& entry) {
  const auto renew = [&](std::map<uint64_t, EntryPtr>& order, uint64_t& stamp) {
    if (order.erase(stamp) == 0) return;
    stamp = ++clock_;
    order.emplace(stamp, entry);
  };
  renew(memory_order_, entry->memory_stamp);
  renew(disk_order_, entry->disk_stamp);
}

void StateVault::Core::add_image(const EntryPtr& entry, std::unique_ptr<const StateImage> image) {
  entry->image = std::move(image);
  entry->memory_stamp = ++clock_;
  memory_order_.emplace(entry->memory_stamp, entry);
}

std::unique_ptr<const StateImage> StateVault::Core::take_image(const EntryPtr& entry) {
  assert(entry->pins == 0);
  if (entry->image == nullptr) return nullptr;
  memory_order_.erase(entry->memory_stamp);
  memory_bytes_ -= entry->bytes;
  return std::exchange(entry->image, nullptr);
}

void StateVault::Core::forget_file(const EntryPtr& entry) {
  if (entry->path.empty()) return;
  std::error_code ignored;
  fs::remove(entry->path, ignored);
  disk_order_.erase(entry->disk_stamp);
  disk_bytes_ -= entry->bytes;
  entry->path.clear();
}

// Gives back what a gone entry holds, once nobody reads it.
void StateVault::Core::clean_up(const EntryPtr& entry, Lock& lock) {
  if (!entry->gone || entry->pins > 0) return;
  auto image = take_image(entry);
  lock.unlock();  // unmapping takes a while
  image.reset();
  lock.lock();
}

void StateVault::Core::remove_entry(const EntryPtr& entry, Lock& lock) {
  assert(!entry->gone && !entry->busy);
  entry->gone = true;
  index_.erase(entry->label.key);
  forget_file(entry);
  clean_up(entry, lock);
}

void StateVault::Core::lose(const EntryPtr& entry, const std::string& path, const char* why) {
  ++stats_.failures;
  spdlog::warn("state vault: {} {}; the saved state of {} tokens is dropped", path, why,
               entry->tokens);
}

// -- room ----------------------------------------------------------------------------------------

bool StateVault::Core::reserve_memory(uint64_t bytes, Lock& lock) {
  if (bytes > options_.memory_bytes) return false;
  while (memory_bytes_ + bytes > options_.memory_bytes) {
    const auto oldest =
        std::find_if(memory_order_.begin(), memory_order_.end(),
                     [](const auto& at) { return at.second->pins == 0 && !at.second->busy; });
    if (oldest == memory_order_.end()) {
      if (evictions_running_ == 0) return false;  // the rest is pinned
      changed_.wait(lock);
      continue;
    }
    const EntryPtr victim = oldest->second;
    ++evictions_running_;
    if (victim->path.empty()) write_file(victim, *victim->image, lock);
    // Without the lock it may have been pinned.
    if (victim->pins == 0) {
      if (victim->path.empty()) {
        ++stats_.evictions;
        remove_entry(victim, lock);
      } else {
        auto image = take_image(victim);
        lock.unlock();
        image.reset();
        lock.lock();
      }
    }
    --evictions_running_;
    changed_.notify_all();
  }
  memory_bytes_ += bytes;
  return true;
}

bool StateVault::Core::reserve_disk(uint64_t bytes) {
  if (options_.directory.empty() || bytes > options_.disk_bytes) return false;
  while (disk_bytes_ + bytes > options_.disk_bytes) {
    const auto oldest = std::find_if(disk_order_.begin(), disk_order_.end(),
                                     [](const auto& at) { return !at.second->busy; });
    if (oldest == disk_order_.end()) return false;
    const EntryPtr victim = oldest->second;
    forget_file(victim);
    if (victim->image == nullptr) {
      ++stats_.evictions;
      victim->gone = true;
      index_.erase(victim->label.key);
    }
  }
  disk_bytes_ += bytes;
  return true;
}

// Whether the entry has a file now. Its image stays readable meanwhile.
bool StateVault::Core::write_file(const EntryPtr& entry, const StateImage& image, Lock& lock) {
  if (!reserve_disk(entry->bytes)) return false;
  const std::string path = path_of(entry->label);
  entry->busy = true;
  lock.unlock();
  std::string problem;
  try {
    write_image_file(path, image);
  } catch (const Error& error) {
    problem = error.what();
  }
  lock.lock();
  entry->busy = false;
  changed_.notify_all();
  if (problem.empty()) {
    ++stats_.files_written;
    entry->path = path;
    entry->disk_stamp = ++clock_;
    disk_order_.emplace(entry->disk_stamp, entry);
  } else {
    disk_bytes_ -= entry->bytes;
    lose(entry, path, problem.c_str());
  }
  return problem.empty();
}

// -- entries -------------------------------------------------------------------------------------

bool StateVault::Core::put(const std::string& key, const DirectoryVersion& version,
                           StateImage image) {
  check_name(key, version);
  if (const std::string why = image.manifest().misfit(options_.shape); !why.empty())
    fail(ErrorKind::kInvalidArgument, "an image with {}", why);
  if (!image.is_complete())
    fail(ErrorKind::kInvalidArgument, "an image with {} of its {} tokens", image.held(),
         image.manifest().length());
  auto entry = std::make_shared<Entry>();
  entry->label = {engine_, key, version};
  entry->tokens = image.manifest().length();
  entry->bytes = image.manifest().image_bytes();
  auto owned = std::make_unique<const StateImage>(std::move(image));

  Lock lock(mutex_);
  // The older image goes first: its room is this one's. Its file may bear the same name.
  const auto make_way = [&] {
    for (auto it = index_.find(key); it != index_.end(); it = index_.find(key)) {
      const EntryPtr old = it->second;
      if (old->label.version.epoch == version.epoch &&
          old->label.version.sequence > version.sequence)
        return false;
      if (old->busy) {
        changed_.wait(lock);
        continue;
      }
      remove_entry(old, lock);
    }
    return true;
  };
  if (!make_way()) return false;
  if (reserve_memory(entry->bytes, lock)) {
    if (!make_way()) {
      memory_bytes_ -= entry->bytes;
      return false;
    }
    add_image(entry, std::move(owned));
    index_.emplace(key, entry);
    return true;
  }
  if (!make_way()) return false;
  index_.emplace(key, entry);
  if (write_file(entry, *owned, lock)) return true;
  remove_entry(entry, lock);
  return false;
}

PinnedImage StateVault::Core::pinned(const EntryPtr& entry) {
  ++entry->pins;
  use(entry);
  return {entry->image.get(),
          [core = shared_from_this(), entry](const StateImage*) { core->unpin(entry); }};
}

void StateVault::Core::unpin(const EntryPtr& entry) {
  Lock lock(mutex_);
  --entry->pins;
  clean_up(entry, lock);
}

PinnedImage StateVault::Core::pin(const std::string& key) {
  Lock lock(mutex_);
  for (;;) {
    const auto it = index_.find(key);
    if (it == index_.end()) return nullptr;
    const EntryPtr entry = it->second;
    if (entry->image != nullptr) return pinned(entry);
    if (entry->busy) {
      changed_.wait(lock);
      continue;
    }
    entry->busy = true;
    const bool room = reserve_memory(entry->bytes, lock);
    std::unique_ptr<const StateImage> image;
    std::string problem;
    if (room) {
      lock.unlock();
      try {
        image = std::make_unique<const StateImage>(read_image_file(entry->path, &options_.shape));
      } catch (const Error& error) {
        problem = error.what();
      }
      lock.lock();
    }
    entry->busy = false;
    changed_.notify_all();
    if (image != nullptr) {
      ++stats_.files_read;
      add_image(entry, std::move(image));
      return pinned(entry);
    }
    if (room) {
      memory_bytes_ -= entry->bytes;
      lose(entry, entry->path, problem.c_str());
      remove_entry(entry, lock);
    }
    return nullptr;
  }
}

VaultEntry StateVault::Core::describe(const Entry& entry) {
  return {.key = entry.label.key,
          .version = entry.label.version,
          .tokens = entry.tokens,
          .bytes = entry.bytes,
          .in_memory = entry.image != nullptr,
          .on_disk = !entry.path.empty(),
          .pins = entry.pins};
}

std::optional<VaultEntry> StateVault::Core::find(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto it = index_.find(key);
  if (it == index_.end()) return std::nullopt;
  return describe(*it->second);
}

std::vector<VaultEntry> StateVault::Core::entries() const {
  std::vector<VaultEntry> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, entry] : index_) all.push_back(describe(*entry));
  }
  std::sort(all.begin(), all.end(),
            [](const VaultEntry& a, const VaultEntry& b) { return a.key < b.key; });
  return all;
}

bool StateVault::Core::relabel(const std::string& key, const DirectoryVersion& version) {
  check_name(key, version);
  Lock lock(mutex_);
  for (;;) {
    const auto it = index_.find(key);
    if (it == index_.end()) return false;
    const EntryPtr entry = it->second;
    if (entry->busy) {
      changed_.wait(lock);
      continue;
    }
    entry->label.version = version;
    if (entry->path.empty()) return true;
    const std::string path = path_of(entry->label);
    if (std::rename(entry->path.c_str(), path.c_str()) == 0) {
      entry->path = path;
      return true;
    }
    const std::string why = fmt::format("cannot be renamed ({})",
                                        std::error_code(errno, std::generic_category()).message());
    lose(entry, entry->path, why.c_str());
    remove_entry(entry, lock);
    return false;
  }
}

void StateVault::Core::drop(const std::string& key) {
  Lock lock(mutex_);
  for (auto it = index_.find(key); it != index_.end(); it = index_.find(key)) {
    const EntryPtr entry = it->second;
    if (!entry->busy) return remove_entry(entry, lock);
    changed_.wait(lock);
  }
}

void StateVault::Core::flush() {
  Lock lock(mutex_);
  std::vector<EntryPtr> unwritten;  // least recently used first, so that the latest stay
  for (const auto& [stamp, entry] : memory_order_)
    if (!entry->gone) unwritten.push_back(entry);
  for (const EntryPtr& entry : unwritten) {
    if (entry->gone || entry->busy || !entry->path.empty() || entry->image == nullptr) continue;
    // A pin keeps the image in place while the lock is away.
    PinnedImage image = pinned(entry);
    write_file(entry, *image, lock);
    lock.unlock();  // the pin takes the lock when it ends
    image.reset();
    lock.lock();
  }
}

VaultStats StateVault::Core::stats() const {
  const std::lock_guard lock(mutex_);
  VaultStats stats = stats_;
  stats.memory_bytes = memory_bytes_;
  stats.disk_bytes = disk_bytes_;
  stats.entries = static_cast<int64_t>(index_.size());
  for (const auto& [stamp, entry] : memory_order_) stats.pins += entry->pins;
  return stats;
}

// Of an earlier run: whole files of this engine, the latest of each conversation, within the
// budget. Called by the constructor, before anybody else can look.
void StateVault::Core::scan() {
  std::vector<std::pair<fs::file_time_type, std::string>> paths;
  std::error_code error;
  for (fs::directory_iterator it(options_.directory, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (!name.starts_with(engine_)) continue;
    if (name.ends_with(temporary_name(kStateFileSuffix)))
      fs::remove(it->path(), ignored);
    else if (name.ends_with(kStateFileSuffix))
      paths.emplace_back(it->last_write_time(ignored), it->path().string());
  }
  if (error) {
    ++stats_.failures;
    spdlog::warn("state vault: {} cannot be listed ({})", options_.directory, error.message());
  }
  std::sort(paths.begin(), paths.end());
  Lock lock(mutex_);
  for (const auto& [time, path] : paths) {
    auto entry = std::make_shared<Entry>();
    try {
      const auto label = StateFileName::parse(fs::path(path).filename().string());
      if (!label) fail(ErrorKind::kIo, "has a name that is not a saved state's");
      entry->label = *label;
      const StateManifest manifest = read_manifest_file(path, &options_.shape);
      entry->tokens = manifest.length();
      entry->bytes = manifest.image_bytes();
    } catch (const Error& problem) {
      lose(entry, path, problem.what());
      std::error_code ignored;
      fs::remove(path, ignored);
      continue;
    }
    if (const auto old = index_.find(entry->label.key); old != index_.end()) {
      const EntryPtr earlier = old->second;
      remove_entry(earlier, lock);
    }
    if (!reserve_disk(entry->bytes)) {
      std::error_code ignored;
      fs::remove(path, ignored);
      continue;
    }
    entry->path = path;
    entry->disk_stamp = ++clock_;
    disk_order_.emplace(entry->disk_stamp, entry);
    index_.emplace(entry->label.key, entry);
  }
}

// -- the door ------------------------------------------------------------------------------------

StateVault::StateVault(VaultOptions options) : core_(std::make_shared<Core>(std::move(options))) {}
StateVault::~StateVault() { core_->flush(); }

const StateShape& StateVault::shape() const { return core_->shape(); }
bool StateVault::put(const std::string& key, const DirectoryVersion& version, StateImage image) {
  return core_->put(key, version, std::move(image));
}
PinnedImage StateVault::pin(const std::string& key) { return core_->pin(key); }
std::optional<VaultEntry> StateVault::find(const std::string& key) const {
  return core_->find(key);
}
std::vector<VaultEntry> StateVault::entries() const { return core_->entries(); }
bool StateVault::relabel(const std::string& key, const DirectoryVersion& version) {
  return core_->relabel(key, version);
}
void StateVault::drop(const std::string& key) { core_->drop(key); }
void StateVault::flush() { core_->flush(); }
VaultStats StateVault::stats() const { return core_->stats(); }

}  // namespace peregrine
