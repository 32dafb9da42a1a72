#include "kvshare/state_file_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <span>

#include "base/hex.h"

namespace peregrine {
namespace {

constexpr std::string_view kSuffix = kStateFileSuffix;
constexpr size_t kEngineBytes = 8;  // of the fingerprint
constexpr size_t kMaxEpochCharacters = 36;

}  // namespace

std::string engine_name(const Fingerprint& fingerprint) {
  return to_hex(std::span(fingerprint).first(kEngineBytes));
}

std::string misnamed(const std::string& key, const DirectoryVersion& version) {
  if (key.size() != kConversationKeyDigits || !is_hex(key))
    return fmt::format("a conversation key of {} characters, expected {} hexadecimal digits",
                       key.size(), kConversationKeyDigits);
  const auto fits = [](char c) { return c == '-' || is_hex({&c, 1}); };
  if (version.epoch.size() > kMaxEpochCharacters ||
      !std::all_of(version.epoch.begin(), version.epoch.end(), fits))
    return fmt::format("directory epoch \"{}\", expected a UUID", version.epoch);
  return {};
}

std::string StateFileName::text() const {
  return fmt::format("{}-{}-{}-{}{}", engine, key, version.sequence, version.epoch, kSuffix);
}

std::optional<StateFileName> StateFileName::parse(std::string_view name) {
  constexpr size_t kEngineDigits = 2 * kEngineBytes;
  constexpr size_t kKeyAt = kEngineDigits + 1, kSequenceAt = kKeyAt + kConversationKeyDigits + 1;
  if (!name.ends_with(kSuffix)) return std::nullopt;
  name.remove_suffix(kSuffix.size());
  if (name.size() < kSequenceAt || name[kEngineDigits] != '-' || name[kSequenceAt - 1] != '-' ||
      !is_hex(name.substr(0, kEngineDigits)))
    return std::nullopt;
  StateFileName found{.engine = std::string(name.substr(0, kEngineDigits)),
                      .key = std::string(name.substr(kKeyAt, kConversationKeyDigits)),
                      .version = {}};
  name.remove_prefix(kSequenceAt);
  const auto [end, error] =
      std::from_chars(name.data(), name.data() + name.size(), found.version.sequence);
  if (error != std::errc() || end == name.data() + name.size() || *end != '-') return std::nullopt;
  found.version.epoch = name.substr(static_cast<size_t>(end - name.data()) + 1);
  if (!misnamed(found.key, found.version).empty()) return std::nullopt;
  return found;
}

}  // namespace peregrine
