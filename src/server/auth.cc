#include "server/auth.h"

#include <strings.h>

#include <fstream>

#include "base/fail.h"

namespace peregrine {
namespace {

bool equal(std::string_view given, std::string_view key) {
  unsigned char difference = given.size() != key.size();
  for (size_t i = 0; i < given.size(); ++i)
    difference |= static_cast<unsigned char>(given[i] ^ (i < key.size() ? key[i] : 0));
  return difference == 0;
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

}  // namespace

bool Auth::allows(const HttpRequest& request) const {
  if (keys_.empty()) return true;
  std::string_view given;
  if (const std::string* key = request.header("x-api-key")) given = trimmed(*key);
  if (const std::string* bearer = request.header("authorization");
      bearer && bearer->size() > 7 && strncasecmp(bearer->data(), "bearer ", 7) == 0)
    given = trimmed(std::string_view(*bearer).substr(7));
  bool allowed = false;
  for (const std::string& key : keys_) allowed |= equal(given, key);
  return allowed;
}

std::vector<std::string> read_api_keys(const std::vector<std::string>& flags) {
  std::vector<std::string> keys;
  for (const std::string& flag : flags) {
    if (!flag.starts_with('@')) {
      if (trimmed(flag).empty())
        fail(ErrorKind::kInvalidArgument, "an API key is empty, expected a word or @file");
      keys.emplace_back(trimmed(flag));
      continue;
    }
    const std::string path = flag.substr(1);
    std::ifstream file(path);
    if (!file) fail(ErrorKind::kIo, "{}: cannot read the API keys", path);
    const size_t before = keys.size();
    for (std::string line; std::getline(file, line);) {
      const std::string_view key = trimmed(line);
      if (!key.empty() && key[0] != '#') keys.emplace_back(key);
    }
    if (keys.size() == before)
      fail(ErrorKind::kInvalidArgument, "{}: holds no API key, expected one a line", path);
  }
  return keys;
}

}  // namespace peregrine
