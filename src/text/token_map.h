// The Engram's compressed token ids: tokens that differ only in case, accents, width or surrounding
// white space share one (spec: engram.md section 2). Built from the tokenizer alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace peregrine {

class Tokenizer;

struct TokenMap {
  std::vector<int32_t> ids;  // token id -> compressed id, vocab_size entries
  int32_t n_classes = 0;     // compressed ids are 0 .. n_classes - 1
  int32_t pad = 0;           // compressed id of the padding token
};

// The text that decides a token's class: NFKC, decomposed, marks removed, lower-cased, white space
// collapsed and stripped; `text` itself when nothing is left.
std::string token_class_key(std::string_view text);

// `texts[id]` is what the single id decodes to; where it holds U+FFFD the token is a fragment of a
// character and `raw[id]`, its vocabulary string, is the key. Ids from texts.size() up to
// `vocab_size` are unknown and map to pad. Classes are numbered in order of first appearance.
TokenMap make_token_map(std::span<const std::string> texts, std::span<const std::string> raw,
                        int32_t vocab_size, int32_t pad_id);

// For a model: `expected_classes` is the config's engram_compressed_vocab_size. Unknown ids map to
// pad; only when the count shows that the file leaves out reserved tokens that the release counts
// (as many as are unknown) does each unknown id keep a class of its own, so that later tokens get
// the numbers they were trained with. Throws Error(kBadCheckpoint) when neither gives the expected
// count, because then every hash would differ.
TokenMap make_token_map(const Tokenizer& tokenizer, int32_t vocab_size, int32_t pad_id,
                        int32_t expected_classes);

}  // namespace peregrine
