#include "text/pretokenizer.h"

#include <array>

#include "text/unicode.h"

namespace peregrine {
namespace {

struct Character {
  char32_t code_point;
  CharClass cls;
  size_t next;  // byte offset of the following character
};

bool is_ascii_letter(char32_t c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }
bool is_newline(char32_t c) { return c == '\r' || c == '\n'; }
bool is_letter_or_mark(CharClass c) { return c == CharClass::kLetter || c == CharClass::kMark; }
bool is_symbol(CharClass c) { return c == CharClass::kPunctuation || c == CharClass::kSymbol; }
// Every printable ASCII character that is neither letter nor digit.
bool is_ascii_symbol(const Character& c) { return c.code_point < 0x80 && is_symbol(c.cls); }

// The ranges of the second pattern.
bool is_han_or_kana(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x309F) ||
         (c >= 0x30A0 && c <= 0x30FF);
}

// Most text is ASCII; its classes are kept apart from the big table.
using AsciiClasses = std::array<CharClass, 0x80>;
const AsciiClasses& ascii_classes() {
  static const AsciiClasses classes = [] {
    AsciiClasses all;
    for (char32_t c = 0; c < all.size(); ++c) all[c] = char_class(c);
    return all;
  }();
  return classes;
}

class Cutter {
 public:
  Cutter(std::string_view text, std::vector<std::string_view>& pieces)
      : text_(text), pieces_(pieces) {}

  // Splits 1 and 2; what lies between their matches goes to split 3.
  void run() {
    size_t at = 0;
    while (at < text_.size()) {
      const Character c = read(at);
      if (c.cls == CharClass::kNumber) {
        at = cut_numbers(at);
      } else if (is_han_or_kana(c.code_point)) {
        const size_t end =
            skip(at, [](const Character& x) { return is_han_or_kana(x.code_point); });
        emit(at, end);
        at = end;
      } else {
        end_ = skip(at, [](const Character& x) {
          return x.cls != CharClass::kNumber && !is_han_or_kana(x.code_point);
        });
        cut_words(at);
        at = end_;
        end_ = text_.size();
      }
    }
  }

 private:
  Character read(size_t at) const {
    const auto byte = static_cast<uint8_t>(text_[at]);
    if (byte < 0x80) return {byte, ascii_[byte], at + 1};
    const DecodedCharacter c = decode_utf8(text_.substr(at));
    return {c.code_point, char_class(c.code_point), at + c.length};
  }
  // The first offset from `at` on, at most end_, whose character does not satisfy `predicate`.
  template <typename Predicate>
  size_t skip(size_t at, Predicate predicate) const {
    while (at < end_) {
      const Character c = read(at);
      if (!predicate(c)) break;
      at = c.next;
    }
    return at;
  }
  void emit(size_t begin, size_t end) {
    if (begin < end) pieces_.push_back(text_.substr(begin, end - begin));
  }

  size_t cut_numbers(size_t at) {
    size_t begin = at;
    int count = 0;
    while (at < text_.size()) {
      const Character c = read(at);
      if (c.cls != CharClass::kNumber) break;
      if (count == 3) {
        emit(begin, at);
        begin = at;
        count = 0;
      }
      ++count;
      at = c.next;
    }
    emit(begin, at);
    return at;
  }

  // Split 3 on [at, end_). Characters that no rule covers gather in gaps.
  void cut_words(size_t at) {
    size_t gap = at;
    while (at < end_) {
      const size_t end = match(at);
      if (end == at) {
        at = read(at).next;
        continue;
      }
      emit(gap, at);
      emit(at, end);
      gap = at = end;
    }
    emit(gap, at);
  }

  // The end of the match that starts at `at`, or `at` when there is none. The rules are those of
  // section 4.1, in their order.
  size_t match(size_t at) const {
    const auto letters = [](const Character& x) { return is_letter_or_mark(x.cls); };
    const auto symbols = [](const Character& x) { return is_symbol(x.cls); };
    const auto newlines = [](const Character& x) { return is_newline(x.code_point); };
    const Character c = read(at);
    const bool has_next = c.next < end_;
    const Character next = has_next ? read(c.next) : Character{0, CharClass::kOther, end_};

    if (is_ascii_symbol(c) && has_next && is_ascii_letter(next.code_point)) {
      return skip(c.next, [](const Character& x) { return is_ascii_letter(x.code_point); });
    }
    const bool may_lead = !is_newline(c.code_point) && c.cls != CharClass::kLetter && !symbols(c);
    if ((may_lead && has_next && letters(next)) || letters(c)) return skip(c.next, letters);
    if (symbols(c) || (c.code_point == ' ' && has_next && symbols(next))) {
      return skip(skip(c.next, symbols), newlines);
    }
    return c.cls == CharClass::kSpace ? match_space(at) : at;
  }

  size_t match_space(size_t at) const {
    size_t end = at, last = at, behind_newline = at;
    while (end < end_) {
      const Character c = read(end);
      if (c.cls != CharClass::kSpace) break;
      last = end;
      end = c.next;
      if (is_newline(c.code_point)) behind_newline = end;
    }
    if (behind_newline > at) return behind_newline;
    if (end == end_ || last == at) return end;
    return last;  // the last space belongs to what follows
  }

  std::string_view text_;
  std::vector<std::string_view>& pieces_;
  const AsciiClasses& ascii_ = ascii_classes();
  size_t end_ = text_.size();  // of the stretch that split 3 works on
};

}  // namespace

void pretokenize(std::string_view text, std::vector<std::string_view>& pieces) {
  Cutter(text, pieces).run();
}

}  // namespace peregrine
