#include "text/byte_alphabet.h"

#include <array>

#include "text/unicode.h"

namespace peregrine {
namespace {

bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// The other 68 bytes, in ascending order, are U+0100, U+0101, ...
constexpr int kLimit = 0x100 + 68;

struct Alphabet {
  std::array<char32_t, 256> character;
  std::array<int, kLimit> byte;

  Alphabet() {
    byte.fill(-1);
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      character[b] = stands_for_itself(b) ? b : next++;
      byte[character[b]] = b;
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

std::optional<std::string> from_byte_alphabet(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const DecodedCharacter c = decode_utf8(text);
    const int byte = c.code_point < kLimit ? alphabet().byte[c.code_point] : -1;
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    text.remove_prefix(c.length);
  }
  return bytes;
}

std::string to_byte_alphabet(std::string_view bytes) {
  std::string text;
  for (const char b : bytes) append_utf8(text, alphabet().character[static_cast<uint8_t>(b)]);
  return text;
}

}  // namespace peregrine
