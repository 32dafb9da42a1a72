// The model's tokenizer: text to token ids and back (spec: tokenizer.md).
//
// Owns: the byte strings of all tokens, the merges, the added tokens. Assumes the one kind of
// tokenizer.json of this model family (byte-level BPE behind three fixed splits, no normalisation)
// and refuses every other kind in a sentence, because it would silently give different ids.
// Immutable after loading; all members may be called from several threads.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/bpe.h"
#include "text/unicode.h"

namespace peregrine {

// Whether spellings of added tokens inside a text become these tokens. kPlain is for text that
// users, tools or documents supply: there they are ordinary characters and forge nothing.
enum class SpecialTokens { kRecognise, kPlain };

class Tokenizer {
 public:
  // `path` is a tokenizer.json or a directory that holds one. Throws Error(kIo) when it cannot be
  // read and Error(kBadCheckpoint) when it is no tokenizer of this kind.
  static Tokenizer load(const std::string& path);
  static Tokenizer from_json(std::string_view json, const std::string& name_for_errors);

  // No token is added: a chat prompt carries the spelling of BOS itself. Ill-formed UTF-8 is read
  // as U+FFFD (section 7).
  std::vector<int32_t> encode(std::string_view text, SpecialTokens special) const;

  // Always valid UTF-8; ids without an entry contribute nothing. decode(encode(x)) == x for valid
  // x.
  std::string decode(std::span<const int32_t> ids) const;

  // The raw bytes of a token: the spelling of an added token, perhaps a part of a character for an
  // ordinary one. Empty for ids without an entry, whatever their value.
  std::string_view token_bytes(int32_t id) const;
  bool has(int32_t id) const { return kind(id) != Kind::kMissing; }
  bool is_added(int32_t id) const { return kind(id) == Kind::kAdded; }
  // The token as the file spells it: bytes of ordinary tokens as printable characters (section 5).
  std::string vocabulary_string(int32_t id) const;

  // The added token with exactly this spelling.
  std::optional<int32_t> id_of(std::string_view spelling) const;

  // Largest id + 1; ids below it may be missing.
  int32_t vocab_size() const { return static_cast<int32_t>(kinds_.size()); }

  // Ids below `vocab_size` that must never be sampled: BOS, padding, the image placeholder,
  // reserved placeholders and ids without an entry (section 9). Ascending.
  std::vector<int32_t> masked_ids(int32_t vocab_size) const;

  // EOS, and the tokens that never belong into an assistant turn and therefore end it
  // (spec: encoding.md section 10). Ascending; only those the file has.
  std::vector<int32_t> end_of_turn_ids() const;

 private:
  enum class Kind : uint8_t { kMissing, kOrdinary, kAdded };
  friend class TokenizerBuilder;
  Tokenizer() = default;
  Kind kind(int32_t id) const { return id >= 0 && id < vocab_size() ? kinds_[id] : Kind::kMissing; }
  // Length in bytes and id of the longest added token that `text` starts with; length 0 for none.
  struct AddedMatch {
    size_t length = 0;
    int32_t id = -1;
  };
  AddedMatch match_added(std::string_view text) const;
  void encode_plain(std::string_view text, BpeMerger& merger, std::vector<int32_t>& ids) const;

  std::string bytes_;            // of all tokens, one after another
  std::vector<size_t> offsets_;  // vocab_size() + 1 offsets into bytes_
  std::vector<Kind> kinds_;
  std::array<int32_t, 256> byte_ids_{};
  PairMerges merges_;
  std::unordered_map<std::string, int32_t> added_;
  std::array<std::vector<size_t>, 256> added_lengths_;  // by first byte; descending, distinct
};

// Ids in, text out, never half a character (section 8). A held tail is at most three bytes; an
// added token ends it. The tokenizer must outlive this.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  // The text that has become complete with this token; may be empty.
  std::string push(int32_t id) { return stream_.push(tokenizer_->token_bytes(id)); }
  // The end of the sequence: a held tail becomes U+FFFD.
  std::string flush() { return stream_.flush(); }

 private:
  const Tokenizer* tokenizer_;
  Utf8Stream stream_;
};

}  // namespace peregrine
