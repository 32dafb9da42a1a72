#include "kvshare/directory.h"

#include <fmt/format.h>
#include <openssl/sha.h>

#include <array>
#include <random>
#include <span>

#include "base/hex.h"

namespace peregrine {

std::string conversation_key(const std::string& conversation_id) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> hash;
  SHA256(reinterpret_cast<const unsigned char*>(conversation_id.data()), conversation_id.size(),
         hash.data());
  return to_hex(std::as_bytes(std::span(hash)));
}

std::string random_epoch() {
  std::random_device random;
  std::array<uint32_t, 4> words;
  for (uint32_t& word : words) word = random();
  return fmt::format("{:08x}-{:04x}-4{:03x}-{:04x}-{:04x}{:08x}", words[0], words[1] >> 16,
                     words[1] & 0xfff, 0x8000 | (words[2] >> 16 & 0x3fff), words[2] & 0xffff,
                     words[3]);
}

}  // namespace peregrine
