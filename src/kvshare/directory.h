// Who has the newest state of a conversation (spec: kv-sharing.md, Directory).
//
// Owns: the vocabulary and the protocol. A record is a version (epoch, sequence) and its owner. A
// server looks a conversation up, and when it has computed a turn it claims the next version by
// showing the one it read: of any number of claims on one version exactly one succeeds, and nobody
// holds a lock. The directory says who to ask, nothing about a state's content, so that losing it
// loses no state and a wrong answer of it can cost time only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace peregrine {

// A random id of the directory's life, and the number of the claim within it; 0: never claimed.
struct DirectoryVersion {
  std::string epoch;
  uint64_t sequence = 0;
  bool operator==(const DirectoryVersion&) const = default;
};

struct DirectoryRecord {
  DirectoryVersion version;
  std::string owner;  // empty: nobody, or a server that is not alive
  bool operator==(const DirectoryRecord&) const = default;
};

enum class DirectoryOutcome {
  kDone,
  kStale,        // the version shown is not the current one
  kUnavailable,  // the directory does not answer; whether a claim took place is unknown
};

struct DirectoryClaim {
  DirectoryOutcome outcome = DirectoryOutcome::kUnavailable;
  DirectoryVersion version;  // the claimed one, with kDone
};

// All operations are thread-safe, renew the record's expiry, return within the implementation's
// time limit and never throw. `key`: conversation_key().
class Directory {
 public:
  virtual ~Directory() = default;

  // Nothing: unavailable. An unknown conversation has sequence 0 and no owner.
  virtual std::optional<DirectoryRecord> look_up(const std::string& key) = 0;
  // Makes this server the owner of the version after `seen`.
  virtual DirectoryClaim claim(const std::string& key, const DirectoryVersion& seen) = 0;
  // kDone: the version is the current one and its owner is alive.
  virtual DirectoryOutcome check(const std::string& key, const DirectoryVersion& version) = 0;

  virtual bool available() const = 0;
  virtual const std::string& owner() const = 0;  // this server's name in records
};

// What a directory tells its server, from a thread of its own. Callbacks must return soon and must
// not call the directory.
struct DirectoryNotices {
  std::function<void(const std::string& key, const std::string& owner)> claimed;  // by another
  // The directory was lost and begins anew: nothing it said before holds.
  std::function<void()> new_epoch;
};

inline constexpr int64_t kRecordExpirySeconds = 24 * 60 * 60;

// SHA-256 of a conversation's id in hexadecimal digits: ids themselves never leave the server.
inline constexpr size_t kConversationKeyDigits = 64;
std::string conversation_key(const std::string& conversation_id);
// A random UUID, version 4.
std::string random_epoch();

}  // namespace peregrine
