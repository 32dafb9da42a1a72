// Names of state files: they carry what the image does not say, whose it is and which version.
//
//   ENGINE-KEY-SEQUENCE-EPOCH.kvstate
//
// ENGINE is the beginning of the fingerprint and comes first, so that a scan opens no file of
// another engine; the epoch, which may hold dashes, comes last.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/saved_state.h"
#include "kvshare/directory.h"

namespace peregrine {

inline constexpr const char* kStateFileSuffix = ".kvstate";

struct StateFileName {
  std::string engine;
  std::string key;
  DirectoryVersion version;

  std::string text() const;
  // Nothing: not the name of a state file.
  static std::optional<StateFileName> parse(std::string_view name);
};

// What StateFileName::engine is for engines of this fingerprint.
std::string engine_name(const Fingerprint& fingerprint);

// One sentence on why no file can be named for these; empty: one can. The key has to be
// kConversationKeyDigits hexadecimal digits, the epoch the characters of a UUID.
std::string misnamed(const std::string& key, const DirectoryVersion& version);

}  // namespace peregrine
