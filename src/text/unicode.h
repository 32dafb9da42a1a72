// UTF-8 and character classes, as far as tokenising needs them (spec: tokenizer.md sections 4, 7,
// 8).
//
// Owns: decoding with the Unicode "maximal subpart" replacement (each ill-formed stretch that could
// have begun a character becomes one U+FFFD), the streaming form of it, and the class of a code
// point. Assumes: ICU's property tables. Refuses nothing: every byte string has a defined result.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace peregrine {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;

struct DecodedCharacter {
  char32_t code_point;  // U+FFFD when ill-formed
  uint32_t length;      // bytes consumed, at least 1
  bool valid;           // false: the bytes are a maximal ill-formed subsequence
  bool cut_off;         // ill-formed only because the input ended: more bytes could complete it
};

// Decodes the character at the start of `bytes`, which must not be empty.
DecodedCharacter decode_utf8(std::string_view bytes);

void append_utf8(std::string& out, char32_t code_point);

bool is_valid_utf8(std::string_view bytes);

// `bytes` with every maximal ill-formed subsequence replaced by U+FFFD.
std::string repair_utf8(std::string_view bytes);

// Bytes in, whole characters out; holds back at most three bytes.
class Utf8Stream {
 public:
  // The characters that are complete now; bytes that can no longer become valid are U+FFFD, except
  // that the start of an encoded surrogate waits for its third byte.
  std::string push(std::string_view bytes);
  // The end of the stream: a held tail becomes U+FFFD.
  std::string flush();

 private:
  std::string held_;  // the tail; at most three bytes
};

// Classes are disjoint: kSpace is the White_Space property, the others are general categories.
enum class CharClass : uint8_t { kOther, kLetter, kMark, kNumber, kPunctuation, kSymbol, kSpace };

CharClass char_class(char32_t code_point);

}  // namespace peregrine
