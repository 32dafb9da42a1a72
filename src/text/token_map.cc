#include "text/token_map.h"

#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "base/fail.h"
#include "text/tokenizer.h"

namespace peregrine {
namespace {

bool is_collapsible(char32_t c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// Collapses runs of white space and strips both ends, except that a lone space stays.
std::string tidy_spaces(const std::u32string& text) {
  std::u32string collapsed;
  for (const char32_t c : text) {
    if (!is_collapsible(c)) {
      collapsed += c;
    } else if (collapsed.empty() || collapsed.back() != ' ') {
      collapsed += ' ';
    }
  }
  std::u32string_view rest = collapsed;
  if (rest != U" ") {
    const auto is_space = [](char32_t c) { return u_isUWhiteSpace(static_cast<UChar32>(c)) != 0; };
    while (!rest.empty() && is_space(rest.front())) rest.remove_prefix(1);
    while (!rest.empty() && is_space(rest.back())) rest.remove_suffix(1);
  }
  std::string out;
  for (const char32_t c : rest) append_utf8(out, c);
  return out;
}

// Without marks and in lower case. The simple mapping is the full one here: the only character
// whose full lower case is longer, U+0130, has been decomposed before.
std::u32string fold(std::string_view text) {
  UErrorCode status = U_ZERO_ERROR;
  const auto* nfkc = icu::Normalizer2::getNFKCInstance(status);
  const auto* nfd = icu::Normalizer2::getNFDInstance(status);
  if (U_FAILURE(status)) {
    fail(ErrorKind::kInternal, "ICU has no normalisation data ({})", u_errorName(status));
  }
  const auto source =
      icu::UnicodeString::fromUTF8({text.data(), static_cast<int32_t>(text.size())});
  const icu::UnicodeString decomposed = nfd->normalize(nfkc->normalize(source, status), status);
  if (U_FAILURE(status)) {
    fail(ErrorKind::kInternal, "ICU cannot normalise a token ({})", u_errorName(status));
  }
  std::u32string folded;
  for (int32_t i = 0; i < decomposed.length(); i = decomposed.moveIndex32(i, 1)) {
    const UChar32 c = decomposed.char32At(i);
    if (char_class(c) != CharClass::kMark) folded += static_cast<char32_t>(u_tolower(c));
  }
  return folded;
}

std::u32string fold_ascii(std::string_view text) {
  std::u32string folded;
  for (const char c : text) folded += c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c;
  return folded;
}

// An empty key is an unknown id.
TokenMap number_classes(const std::vector<std::optional<std::string>>& keys, int32_t vocab_size,
                        int32_t pad_id, bool unknown_is_distinct) {
  TokenMap map;
  map.ids.assign(vocab_size, -1);
  std::unordered_map<std::string_view, int32_t> known;
  known.reserve(keys.size());
  for (int32_t id = 0; id < vocab_size; ++id) {
    if (static_cast<size_t>(id) < keys.size() && keys[id]) {
      const auto [it, added] = known.emplace(*keys[id], map.n_classes);
      map.n_classes += added;
      map.ids[id] = it->second;
    } else if (unknown_is_distinct) {
      map.ids[id] = map.n_classes++;
    }
  }
  if (pad_id < 0 || pad_id >= vocab_size || map.ids[pad_id] < 0) {
    fail(ErrorKind::kBadCheckpoint,
         "the padding token {} of the Engram is not in the tokenizer's vocabulary of {}", pad_id,
         vocab_size);
  }
  map.pad = map.ids[pad_id];
  std::replace(map.ids.begin(), map.ids.end(), -1, map.pad);
  return map;
}

std::string key_of(std::string_view text, std::string raw) {
  return text.find("\uFFFD") != text.npos ? std::move(raw) : token_class_key(text);
}

}  // namespace

std::string token_class_key(std::string_view text) {
  const bool ascii =
      std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
  std::string key = tidy_spaces(ascii ? fold_ascii(text) : fold(text));
  return key.empty() ? std::string(text) : key;
}

TokenMap make_token_map(std::span<const std::string> texts, std::span<const std::string> raw,
                        int32_t vocab_size, int32_t pad_id) {
  std::vector<std::optional<std::string>> keys;
  for (size_t id = 0; id < texts.size(); ++id) keys.push_back(key_of(texts[id], raw[id]));
  return number_classes(keys, vocab_size, pad_id, false);
}

TokenMap make_token_map(const Tokenizer& tokenizer, int32_t vocab_size, int32_t pad_id,
                        int32_t expected_classes) {
  std::vector<std::optional<std::string>> keys(vocab_size);
  int32_t unknown = 0;
  for (int32_t id = 0; id < vocab_size; ++id) {
    if (!tokenizer.has(id)) {
      ++unknown;
      continue;
    }
    const std::string_view bytes = tokenizer.token_bytes(id);
    keys[id] =
        is_valid_utf8(bytes) ? key_of(bytes, std::string(bytes)) : tokenizer.vocabulary_string(id);
  }
  TokenMap map = number_classes(keys, vocab_size, pad_id, false);
  if (unknown > 0 && map.n_classes + unknown == expected_classes) {
    map = number_classes(keys, vocab_size, pad_id, true);
  }
  if (map.n_classes != expected_classes) {
    fail(
        ErrorKind::kBadCheckpoint,
        "the tokenizer folds into {} classes of tokens, expected engram_compressed_vocab_size = {}",
        map.n_classes, expected_classes);
  }
  return map;
}

}  // namespace peregrine
