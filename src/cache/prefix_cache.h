// Reuse of computed prefixes: which global KV pages stand for which token ids, and saved states to
// continue from exactly (spec: prefill.md section 5, scheduler.md).
//
// An entry is a token sequence with the pages of its rows (each with a reference of its own) and,
// optionally, an exact point: the recent part of the state (rings, unfinished groups) at its end.
// Entries live in a radix tree over token ids; ids are compared, never hashes alone. With a spill
// directory exact points move to files before memory lets go of them, and come back from there,
// also after a restart. Host-side, used by the engine's thread only; spilling writes and reads
// files on that thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/state_store.h"
#include "peregrine/engine.h"

namespace peregrine {

struct PrefixCacheOptions {
  PrefixCacheMode mode = PrefixCacheMode::kReplay;
  uint64_t recent_budget_bytes = uint64_t{256} << 20;  // saved recent parts in host memory
  std::string spill_dir;                               // empty: no disk tier
  uint64_t spill_budget_bytes = 0;
  uint64_t fingerprint = 0;  // of the model; spilled files of another are ignored
};

// A state to save: positions 0 .. length - 1 of a slot.
struct PrefixRecord {
  std::span<const int32_t> tokens;  // at least `length`
  int64_t length = 0;
  int slot = 0;
  // Whether every row was computed as an uncached exact run would have (no encoder replay).
  bool exact = true;
  std::vector<std::byte> recent;  // StateStore::save_recent at `length`; empty: no exact point
};

struct PrefixHit {
  int64_t exact_length = 0;   // longest exact point at or below the limit; 0: none
  int64_t replay_length = 0;  // longest common prefix of any entry; 0 in exact mode
  bool rows_exact = true;     // PrefixRecord::exact of the exact point
};

struct SpillStats {
  int64_t points = 0;    // exact points with a file
  uint64_t bytes = 0;    // of these files
  int64_t failures = 0;  // files that could not be written, read back or trusted
};

class PrefixCache {
 public:
  // Finds the exact points that an earlier run left in the spill directory.
  PrefixCache(StateStore& state, const PrefixCacheOptions& options);
  // Leaves the exact points in the spill directory.
  ~PrefixCache();

  bool enabled() const;  // mode is not kOff

  // Keeps the slot's pages for the record (references are added; the slot keeps its own): all steps
  // that wrote its rows have run. Rows at or above the length may still change. Least recently used
  // exact points over budget leave memory. Never fails: what cannot be kept is dropped.
  void insert(PrefixRecord record);

  // Longest usable prefixes of tokens[0 .. limit). Marks what it finds as recently used.
  PrefixHit lookup(std::span<const int32_t> tokens, int64_t limit);

  // Attaches the pages of the first `length` tokens (a length lookup() returned, no insert or evict
  // in between) to an empty slot; for an exact point also loads its recent part. What only a file
  // holds gets pages of its own, for which other entries may be evicted. False when that fails (an
  // unreadable file, no room); the slot is empty then.
  bool attach(std::span<const int32_t> tokens, int64_t length, bool exact, int slot);

  // Drops least recently used entries until at least `pages` pages have become free in the pool or
  // no entry holds a page that nobody else does; returns the number freed. Spills exact points
  // where a directory is set.
  int64_t evict(int64_t pages);
  void clear();  // forgets everything, files included

  int64_t pages() const;  // distinct pages held
  uint64_t recent_bytes() const;
  int64_t entries() const;
  SpillStats spill_stats() const;

  // Adds the references this cache holds to counts[page]; for the integrity check.
  void count_references(std::span<int32_t> counts) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace peregrine
