#include "text/unicode.h"

#include <unicode/uchar.h>

#include <array>
#include <map>
#include <vector>

namespace peregrine {
namespace {

// Bounds of the second byte are what excludes overlong forms, surrogates and values above U+10FFFF.
struct LeadByte {
  uint8_t length = 0;  // 0: never starts a character
  uint8_t second_low = 0x80, second_high = 0xBF;
};

LeadByte lead_byte(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

// The first two bytes of an encoded surrogate, with the third still to come. They are ill-formed
// already, but the recorded streams replace all three together.
bool is_surrogate_start(std::string_view bytes) {
  return bytes.size() == 2 && bytes[0] == '\xED' && static_cast<uint8_t>(bytes[1]) >= 0xA0 &&
         static_cast<uint8_t>(bytes[1]) <= 0xBF;
}

constexpr int kBlockBits = 8;
constexpr uint32_t kBlockSize = 1u << kBlockBits;
constexpr uint32_t kBlocks = 0x110000 >> kBlockBits;

CharClass class_of_category(UCharCategory category) {
  const uint32_t mask = U_MASK(category);
  if (mask & U_GC_L_MASK) return CharClass::kLetter;
  if (mask & U_GC_M_MASK) return CharClass::kMark;
  if (mask & U_GC_N_MASK) return CharClass::kNumber;
  if (mask & U_GC_P_MASK) return CharClass::kPunctuation;
  if (mask & U_GC_S_MASK) return CharClass::kSymbol;
  return CharClass::kOther;
}

// Two levels: most blocks of 256 code points are uniform and shared.
class ClassTable {
 public:
  ClassTable() {
    std::vector<CharClass> flat(0x110000, CharClass::kOther);
    u_enumCharTypes(
        [](const void* context, UChar32 start, UChar32 limit, UCharCategory category) -> UBool {
          auto& classes = *static_cast<std::vector<CharClass>*>(const_cast<void*>(context));
          for (UChar32 c = start; c < limit; ++c) classes[c] = class_of_category(category);
          return true;
        },
        &flat);
    // White_Space has no member above U+3000.
    for (UChar32 c = 0; c <= 0x3000; ++c) {
      if (u_isUWhiteSpace(c)) flat[c] = CharClass::kSpace;
    }
    std::map<Block, uint16_t> known;
    for (uint32_t b = 0; b < kBlocks; ++b) {
      Block block;
      for (uint32_t i = 0; i < kBlockSize; ++i) block[i] = flat[b * kBlockSize + i];
      const auto [it, added] = known.emplace(block, static_cast<uint16_t>(blocks_.size()));
      if (added) blocks_.push_back(block);
      index_[b] = it->second;
    }
  }

  CharClass operator[](char32_t c) const {
    return c < 0x110000 ? blocks_[index_[c >> kBlockBits]][c & (kBlockSize - 1)]
                        : CharClass::kOther;
  }

 private:
  using Block = std::array<CharClass, kBlockSize>;
  std::array<uint16_t, kBlocks> index_;
  std::vector<Block> blocks_;
};

}  // namespace

DecodedCharacter decode_utf8(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const LeadByte lead = lead_byte(byte(0));
  if (lead.length == 1) return {byte(0), 1, true, false};
  if (lead.length == 0) return {kReplacementCharacter, 1, false, false};
  char32_t value = byte(0) & (0xFF >> (lead.length + 1));
  for (uint32_t i = 1; i < lead.length; ++i) {
    if (i == bytes.size()) return {kReplacementCharacter, i, false, true};
    const uint8_t low = i == 1 ? lead.second_low : 0x80;
    const uint8_t high = i == 1 ? lead.second_high : 0xBF;
    if (byte(i) < low || byte(i) > high) return {kReplacementCharacter, i, false, false};
    value = value << 6 | (byte(i) & 0x3F);
  }
  return {value, lead.length, true, false};
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

bool is_valid_utf8(std::string_view bytes) {
  while (!bytes.empty()) {
    if (static_cast<uint8_t>(bytes[0]) < 0x80) {
      bytes.remove_prefix(1);
      continue;
    }
    const DecodedCharacter c = decode_utf8(bytes);
    if (!c.valid) return false;
    bytes.remove_prefix(c.length);
  }
  return true;
}

std::string repair_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const DecodedCharacter c = decode_utf8(bytes);
    if (c.valid) {
      out.append(bytes.substr(0, c.length));
    } else {
      append_utf8(out, kReplacementCharacter);
    }
    bytes.remove_prefix(c.length);
  }
  return out;
}

std::string Utf8Stream::push(std::string_view bytes) {
  held_.append(bytes);
  std::string_view rest = held_;
  std::string out;
  while (!rest.empty()) {
    const DecodedCharacter c = decode_utf8(rest);
    if (c.cut_off || is_surrogate_start(rest)) break;
    if (c.valid) {
      out.append(rest.substr(0, c.length));
    } else {
      append_utf8(out, kReplacementCharacter);
    }
    rest.remove_prefix(c.length);
  }
  held_ = std::string(rest);
  return out;
}

std::string Utf8Stream::flush() {
  std::string out = repair_utf8(held_);
  held_.clear();
  return out;
}

CharClass char_class(char32_t code_point) {
  static const ClassTable table;
  return table[code_point];
}

}  // namespace peregrine
