#include "text/tokenizer.h"

#include <algorithm>

#include "text/byte_alphabet.h"
#include "text/control_tokens.h"
#include "text/pretokenizer.h"

namespace peregrine {

Tokenizer::AddedMatch Tokenizer::match_added(std::string_view text) const {
  for (const size_t length : added_lengths_[static_cast<uint8_t>(text[0])]) {
    if (length > text.size()) continue;
    const auto it = added_.find(std::string(text.substr(0, length)));
    if (it != added_.end()) return {length, it->second};
  }
  return {};
}

void Tokenizer::encode_plain(std::string_view text, BpeMerger& merger,
                             std::vector<int32_t>& ids) const {
  std::vector<std::string_view> pieces;
  pretokenize(text, pieces);
  for (const std::string_view piece : pieces) merger.merge(piece, ids);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, SpecialTokens special) const {
  std::string repaired;
  if (!is_valid_utf8(text)) {
    repaired = repair_utf8(text);
    text = repaired;
  }
  std::vector<int32_t> ids;
  BpeMerger merger(merges_, byte_ids_);
  size_t plain = 0;  // start of the ordinary stretch
  if (special == SpecialTokens::kRecognise) {
    for (size_t at = 0; at < text.size();) {
      const AddedMatch match = match_added(text.substr(at));
      if (match.length == 0) {
        ++at;
        continue;
      }
      encode_plain(text.substr(plain, at - plain), merger, ids);
      ids.push_back(match.id);
      plain = at += match.length;
    }
  }
  encode_plain(text.substr(plain), merger, ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string bytes;
  for (const int32_t id : ids) bytes.append(token_bytes(id));
  return is_valid_utf8(bytes) ? bytes : repair_utf8(bytes);
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (!has(id)) return {};
  return std::string_view(bytes_).substr(offsets_[id], offsets_[id + 1] - offsets_[id]);
}

std::string Tokenizer::vocabulary_string(int32_t id) const {
  const std::string_view bytes = token_bytes(id);
  return is_added(id) ? std::string(bytes) : to_byte_alphabet(bytes);
}

std::optional<int32_t> Tokenizer::id_of(std::string_view spelling) const {
  const auto it = added_.find(std::string(spelling));
  if (it == added_.end()) return std::nullopt;
  return it->second;
}

std::vector<int32_t> Tokenizer::masked_ids(int32_t vocab_size) const {
  std::vector<int32_t> masked;
  for (int32_t id = 0; id < vocab_size; ++id) {
    const std::string_view text = token_bytes(id);
    const bool control =
        is_added(id) && (text == control::kBos || text == control::kPad ||
                         text == control::kImage || text.starts_with(control::kPlaceholderPrefix));
    if (!has(id) || control) masked.push_back(id);
  }
  return masked;
}

std::vector<int32_t> Tokenizer::end_of_turn_ids() const {
  std::vector<int32_t> ids;
  for (const std::string_view spelling :
       {control::kEos, control::kBos, control::kUser, control::kAssistant, control::kSystem,
        control::kLatestReminder}) {
    if (const auto id = id_of(spelling)) ids.push_back(*id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace peregrine
