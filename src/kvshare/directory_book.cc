#include "kvshare/directory_book.h"

#include <utility>

namespace peregrine {
namespace {

constexpr double kSweepSeconds = 600;

}  // namespace

DirectoryBook::Record* DirectoryBook::find(const std::string& key, double now) {
  const auto at = records_.find(key);
  if (at == records_.end()) return nullptr;
  if (at->second.expires <= now) {
    records_.erase(at);
    return nullptr;
  }
  at->second.expires = now + static_cast<double>(kRecordExpirySeconds);
  return &at->second;
}

bool DirectoryBook::alive(const std::string& owner, double now) const {
  const auto at = alive_until_.find(owner);
  return at != alive_until_.end() && at->second > now;
}

DirectoryRecord DirectoryBook::look_up(const std::string& key, double now) {
  const Record* record = find(key, now);
  if (!record) return {.version = {epoch_, 0}, .owner = {}};
  return {.version = {epoch_, record->sequence},
          .owner = alive(record->owner, now) ? record->owner : std::string()};
}

DirectoryClaim DirectoryBook::claim(const std::string& key, const DirectoryVersion& seen,
                                    const std::string& owner, double alive_seconds, double now) {
  beat(owner, alive_seconds, now);
  const Record* record = find(key, now);
  const uint64_t sequence = record ? record->sequence : 0;
  if (seen != DirectoryVersion{epoch_, sequence})
    return {.outcome = DirectoryOutcome::kStale, .version = {}};
  records_[key] = {.sequence = sequence + 1,
                   .owner = owner,
                   .expires = now + static_cast<double>(kRecordExpirySeconds)};
  return {.outcome = DirectoryOutcome::kDone, .version = {epoch_, sequence + 1}};
}

DirectoryOutcome DirectoryBook::check(const std::string& key, const DirectoryVersion& version,
                                      double now) {
  const Record* record = find(key, now);
  const bool current =
      record && version == DirectoryVersion{epoch_, record->sequence} && alive(record->owner, now);
  return current ? DirectoryOutcome::kDone : DirectoryOutcome::kStale;
}

void DirectoryBook::beat(const std::string& owner, double alive_seconds, double now) {
  alive_until_[owner] = now + alive_seconds;
  if (now < next_sweep_) return;
  next_sweep_ = now + kSweepSeconds;
  std::erase_if(alive_until_, [now](const auto& entry) { return entry.second <= now; });
  std::erase_if(records_, [now](const auto& entry) { return entry.second.expires <= now; });
}

void DirectoryBook::restart_empty(std::string epoch) {
  epoch_ = std::move(epoch);
  records_.clear();
  alive_until_.clear();
}

}  // namespace peregrine
