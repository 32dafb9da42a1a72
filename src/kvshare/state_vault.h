// The states this server keeps of conversations: in host memory and, below it, as files.
//
// Owns: one image a conversation, under its key (conversation_key()) and version. Both tiers have a
// budget in bytes and give up what was used least recently; memory gives to the files, files to
// nobody. An image that somebody reads is pinned: it stays where it is, whatever happens to its
// entry, and counts until the last reader lets go. Whatever goes wrong with a file (full disk, cut,
// flipped bits, another engine's) costs the entry and one warning, never a request. A new vault
// finds the files of an earlier one again.
//
// Thread-safe. put(), pin() and flush() may read and write files, in the calling thread and without
// keeping others out; call them from threads that may wait.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/saved_state.h"
#include "kvshare/directory.h"
#include "kvshare/state_image.h"

namespace peregrine {

struct VaultOptions {
  StateShape shape;           // of the states; files of another fingerprint stay untouched
  uint64_t memory_bytes = 0;  // of images in memory
  std::string directory;      // of the files, created when missing; empty: no files
  uint64_t disk_bytes = 0;    // of all files
};

struct VaultEntry {
  std::string key;
  DirectoryVersion version;
  int64_t tokens = 0;
  uint64_t bytes = 0;
  bool in_memory = false;
  bool on_disk = false;
  int pins = 0;
};

struct VaultStats {
  uint64_t memory_bytes = 0;  // pinned images of entries that are gone included
  uint64_t disk_bytes = 0;
  int64_t entries = 0;
  int64_t pins = 0;
  int64_t files_written = 0;
  int64_t files_read = 0;
  int64_t evictions = 0;  // entries given up for room
  int64_t failures = 0;   // entries lost to a fault
};

// Keeps its image alive and in place; outlives the vault if it has to.
using PinnedImage = std::shared_ptr<const StateImage>;

class StateVault {
 public:
  // A directory that cannot be used switches the files off with a warning.
  explicit StateVault(VaultOptions options);
  // Writes what is in memory only, as flush() does.
  ~StateVault();
  StateVault(const StateVault&) = delete;
  StateVault& operator=(const StateVault&) = delete;

  const StateShape& shape() const;

  // Keeps a complete image in place of the key's older one. Returns whether it is kept: not when
  // the key has a later version of the same epoch, or when neither tier has room. Throws
  // Error(kInvalidArgument) when the key is not 64 hexadecimal digits, the epoch not a UUID's
  // characters or the image not of this shape.
  bool put(const std::string& key, const DirectoryVersion& version, StateImage image);

  // The image, from memory or its file; null when there is none, or no room to read it into.
  PinnedImage pin(const std::string& key);

  // What pin() would find; does not count as use.
  std::optional<VaultEntry> find(const std::string& key) const;
  std::vector<VaultEntry> entries() const;  // by key

  // Gives the entry a new version, as after claiming it again; false when it is gone.
  bool relabel(const std::string& key, const DirectoryVersion& version);

  void drop(const std::string& key);
  // Writes what is in memory only to files, as far as their budget goes.
  void flush();

  VaultStats stats() const;

 private:
  class Core;
  std::shared_ptr<Core> core_;
};

}  // namespace peregrine
