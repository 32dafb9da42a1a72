// API keys: `Authorization: Bearer KEY` or `x-api-key: KEY`.
#pragma once

#include <string>
#include <vector>

#include "server/http.h"

namespace peregrine {

class Auth {
 public:
  // No keys: everybody may ask.
  explicit Auth(std::vector<std::string> keys) : keys_(std::move(keys)) {}

  // Takes the same time for every wrong key of one length.
  bool allows(const HttpRequest& request) const;

 private:
  const std::vector<std::string> keys_;
};

// One key, or "@file": one a line; empty lines and lines with '#' in front are skipped. Throws
// Error(kIo) for a file that cannot be read and Error(kInvalidArgument) for one without a key.
std::vector<std::string> read_api_keys(const std::vector<std::string>& flags);

}  // namespace peregrine
