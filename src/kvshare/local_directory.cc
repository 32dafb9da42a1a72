#include "kvshare/local_directory.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/device.h"

namespace peregrine {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();

}  // namespace

LocalDirectory::LocalDirectory(std::string owner, DirectoryNotices notices,
                               std::shared_ptr<Shared> shared)
    : owner_(std::move(owner)),
      notices_(std::move(notices)),
      shared_(shared ? std::move(shared) : std::make_shared<Shared>()) {
  const std::lock_guard lock(shared_->mutex_);
  shared_->book_.beat(owner_, kForever, now_seconds());
  shared_->members_.push_back(this);
}

LocalDirectory::~LocalDirectory() {
  const std::lock_guard lock(shared_->mutex_);
  shared_->book_.beat(owner_, 0, now_seconds());
  std::erase(shared_->members_, this);
}

std::optional<DirectoryRecord> LocalDirectory::look_up(const std::string& key) {
  const std::lock_guard lock(shared_->mutex_);
  return shared_->book_.look_up(key, now_seconds());
}

DirectoryClaim LocalDirectory::claim(const std::string& key, const DirectoryVersion& seen) {
  const std::lock_guard lock(shared_->mutex_);
  DirectoryClaim claim = shared_->book_.claim(key, seen, owner_, kForever, now_seconds());
  if (claim.outcome != DirectoryOutcome::kDone) return claim;
  for (const LocalDirectory* other : shared_->members_)
    if (other != this && other->notices_.claimed) other->notices_.claimed(key, owner_);
  return claim;
}

DirectoryOutcome LocalDirectory::check(const std::string& key, const DirectoryVersion& version) {
  const std::lock_guard lock(shared_->mutex_);
  return shared_->book_.check(key, version, now_seconds());
}

}  // namespace peregrine
