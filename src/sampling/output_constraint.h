// What the output of a request must look like, and the tokens that keep to it.
//
//   OutputConstraint (shared, immutable)  --one sequence-->  ConstrainedOutput: place -> TokenSet
//
// A place is where in the grammar a text stands. It is advanced over tokens that are part of the
// output and, from there, over the drafts of a block, row by row: every row of a verification step
// has the set that a plain step behind the earlier drafts would have.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sampling/grammar_matcher.h"
#include "text/byte_grammar.h"
#include "text/tokenizer.h"

namespace peregrine {

// One bit a token.
class TokenSet {
 public:
  explicit TokenSet(int vocab_size) : words_((static_cast<size_t>(vocab_size) + 63) / 64) {}
  void add(int32_t id) { words_[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64); }
  void remove(int32_t id) { words_[static_cast<size_t>(id) / 64] &= ~(uint64_t{1} << (id % 64)); }
  void fill() { words_.assign(words_.size(), ~uint64_t{0}); }
  bool has(int32_t id) const {
    return (words_[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0;
  }

 private:
  std::vector<uint64_t> words_;
};

// The ordinary tokens of a vocabulary, and the marker of tool calls, in the order of their bytes,
// so that tokens with a common beginning follow one another. The tokenizer must outlive it.
class SortedTokens {
 public:
  // Ids from `vocab_size` on are left out: the model has no logit for them.
  SortedTokens(const Tokenizer& tokenizer, int vocab_size);

  struct Token {
    std::string_view bytes;  // not empty
    int32_t id;
    int32_t common;  // bytes at the front that the token before has too
  };
  const std::vector<Token>& tokens() const { return tokens_; }
  int vocab_size() const { return vocab_size_; }
  // What a token adds to the text; empty for those that may not be drawn under a grammar.
  std::string_view bytes(int32_t id) const;

 private:
  const int vocab_size_;
  std::vector<Token> tokens_;
  std::vector<std::string_view> bytes_;  // [id]
};

struct OutputConstraint {
  std::shared_ptr<const ByteGrammar> grammar;
  std::shared_ptr<const SortedTokens> tokens;
  std::vector<int32_t> end_ids;       // drawn only where the text is complete
  std::vector<int32_t> never = {};    // not drawn although their bytes would fit
  std::optional<int32_t> free_until;  // up to this token everything but end_ids may be drawn
  std::string begun = {};             // the beginning of the text that the prompt holds already
};

// Whether any text with this beginning has the form.
bool can_go_on(const OutputConstraint& constraint);

// Follows one sequence. Not thread-safe; copies are made of sequences that have not begun.
class ConstrainedOutput {
 public:
  explicit ConstrainedOutput(std::shared_ptr<const OutputConstraint> constraint);

  struct Place {
    bool free = false;  // before free_until
    GrammarMatcher::State state = GrammarMatcher::kDead;
  };
  // Behind the tokens of the output.
  Place place() const { return place_; }
  Place behind(Place place, int32_t token);
  // Tokens that may be drawn there: never none. Valid until the next add_output().
  const TokenSet& allowed(Place place);

  // Places other than the new place() become invalid.
  void add_output(int32_t token);

 private:
  TokenSet make_set(Place place);

  std::shared_ptr<const OutputConstraint> constraint_;
  GrammarMatcher matcher_;
  Place place_;
  std::unordered_map<GrammarMatcher::State, TokenSet> sets_;
  std::optional<TokenSet> free_set_;
};

}  // namespace peregrine
