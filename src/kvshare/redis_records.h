// The directory's records as an operator sees them: all of one prefix, listed or taken away.
//
// Servers use redis_directory.h. Taking a record away is safe at any time: its conversation has no
// owner until the next turn is announced.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvshare/directory.h"
#include "kvshare/redis_connection.h"

namespace peregrine {

struct StoredRecord {
  std::string key;  // conversation_key()
  DirectoryVersion version;
  std::string owner;
  bool alive = false;           // its owner
  int64_t expires_seconds = 0;  // from now
};

// By key. All of these throw Error(kUnavailable).
std::vector<StoredRecord> stored_records(RedisConnection& redis, const std::string& prefix);
bool drop_record(RedisConnection& redis, const std::string& prefix, const std::string& key);
// Of the directory; empty: it was never used.
std::string stored_epoch(RedisConnection& redis, const std::string& prefix);

}  // namespace peregrine
