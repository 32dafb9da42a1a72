// What the directory does inside Redis, each operation atomic (directory_book.h says the same in
// C++). Time and expiry are Redis's own, so clocks of servers do not matter.
//
// KEYS: 1 epoch, 2 record (hash of epoch, sequence, owner), for a claim 3 the claimer's heartbeat.
// ARGV: 1 an epoch for the case that there is none, 2 record expiry in seconds, 3 prefix of
// heartbeat keys; more below. The heartbeat key of a record's owner is found by its name, which
// needs one Redis, not a cluster.
#pragma once

namespace peregrine::redis_script {

// -- shared beginning: `epoch` and `sequence`, `owner` of the record, 0 and '' when there is none.
// A record of another epoch is void.
#define PEREGRINE_READ_RECORD                                                   \
  "redis.call('SET', KEYS[1], ARGV[1], 'NX')\n"                                 \
  "local epoch = redis.call('GET', KEYS[1])\n"                                  \
  "local record = redis.call('HMGET', KEYS[2], 'epoch', 'sequence', 'owner')\n" \
  "local sequence, owner = 0, ''\n"                                             \
  "if record[1] == epoch then\n"                                                \
  "  sequence, owner = tonumber(record[2]), record[3]\n"                        \
  "  redis.call('EXPIRE', KEYS[2], ARGV[2])\n"                                  \
  "end\n"

// Returns epoch, sequence, owner ('' when not alive).
inline constexpr const char* kLookUp = PEREGRINE_READ_RECORD
    "if redis.call('EXISTS', ARGV[3] .. owner) == 0 then owner = '' end\n"
    "return {epoch, tostring(sequence), owner}\n";

// ARGV: 4 epoch and 5 sequence seen, 6 claimer, 7 its heartbeat's length in milliseconds, 8
// channel, 9 message. Returns epoch and the claimed sequence, or epoch and '' for STALE.
inline constexpr const char* kClaim = PEREGRINE_READ_RECORD
    "redis.call('SET', KEYS[3], '1', 'PX', ARGV[7])\n"
    "if ARGV[4] ~= epoch or tonumber(ARGV[5]) ~= sequence then return {epoch, ''} end\n"
    "redis.call('HSET', KEYS[2], 'epoch', epoch, 'sequence', sequence + 1, 'owner', ARGV[6])\n"
    "redis.call('EXPIRE', KEYS[2], ARGV[2])\n"
    "redis.call('PUBLISH', ARGV[8], ARGV[9])\n"
    "return {epoch, tostring(sequence + 1)}\n";

// ARGV: 4 epoch and 5 sequence. Returns epoch and '1' when they are current and the owner lives,
// else ''.
inline constexpr const char* kCheck = PEREGRINE_READ_RECORD
    "if ARGV[4] == epoch and sequence > 0 and tonumber(ARGV[5]) == sequence and\n"
    "    redis.call('EXISTS', ARGV[3] .. owner) == 1 then\n"
    "  return {epoch, '1'}\n"
    "end\n"
    "return {epoch, ''}\n";

#undef PEREGRINE_READ_RECORD

}  // namespace peregrine::redis_script
