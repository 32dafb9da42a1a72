#include "kvshare/redis_records.h"

#include <algorithm>
#include <charconv>

#include "base/fail.h"

namespace peregrine {
namespace {

// ARGV: cursor, prefix. Returns the next cursor and, for each record found, its Redis key, epoch,
// sequence, owner, whether that lives, and seconds until it expires.
constexpr const char* kScan =
    "local found = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2] .. ':record:*', 'COUNT', 1000)\n"
    "local answer = {found[1]}\n"
    "for _, key in ipairs(found[2]) do\n"
    "  local record = redis.call('HMGET', key, 'epoch', 'sequence', 'owner')\n"
    "  local owner = record[3] or ''\n"
    "  local fields = {key, record[1] or '', record[2] or '0', owner,\n"
    "                  redis.call('EXISTS', ARGV[2] .. ':alive:' .. owner),\n"
    "                  redis.call('TTL', key)}\n"
    "  for _, field in ipairs(fields) do table.insert(answer, field) end\n"
    "end\n"
    "return answer\n";
constexpr size_t kFields = 6;

template <typename T>
T number_of(const std::string& text) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    fail(ErrorKind::kUnavailable, "Redis: a record holds \"{}\", expected a number", text);
  return value;
}

std::string record_name(const std::string& prefix, const std::string& key) {
  return prefix + ":record:" + key;
}

}  // namespace

std::vector<StoredRecord> stored_records(RedisConnection& redis, const std::string& prefix) {
  std::vector<StoredRecord> records;
  const size_t skipped = record_name(prefix, "").size();
  std::string cursor = "0";
  do {
    const std::vector<std::string> answer = redis.script(kScan, {"0", cursor, prefix});
    if (answer.size() % kFields != 1) fail(ErrorKind::kUnavailable, "Redis: no list of records");
    cursor = answer[0];
    for (auto at = answer.begin() + 1; at != answer.end(); at += kFields)
      records.push_back({.key = at[0].substr(std::min(skipped, at[0].size())),
                         .version = {at[1], number_of<uint64_t>(at[2])},
                         .owner = at[3],
                         .alive = at[4] == "1",
                         .expires_seconds = number_of<int64_t>(at[5])});
  } while (cursor != "0");
  // A scan may show a record twice.
  const auto by_key = [](const StoredRecord& a, const StoredRecord& b) { return a.key < b.key; };
  std::sort(records.begin(), records.end(), by_key);
  const auto same = [](const StoredRecord& a, const StoredRecord& b) { return a.key == b.key; };
  records.erase(std::unique(records.begin(), records.end(), same), records.end());
  return records;
}

bool drop_record(RedisConnection& redis, const std::string& prefix, const std::string& key) {
  return redis.command({"DEL", record_name(prefix, key)}) == std::vector<std::string>{"1"};
}

std::string stored_epoch(RedisConnection& redis, const std::string& prefix) {
  return redis.command({"GET", prefix + ":epoch"}).at(0);
}

}  // namespace peregrine
