// A context-free grammar over bytes: what a constrained output may look like.
//
// Owns: rules, each with alternatives, each a sequence of byte sets and references to rules. It
// says nothing about how it is matched (sampling/grammar_matcher.h). Assumes: a rule that refers to
// itself first takes a byte, so that an expansion ends. Refuses: grammars of more than
// kMaxGrammarSymbols, because schemas come from strangers.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

namespace peregrine {

inline constexpr size_t kMaxGrammarSymbols = 200000;

struct ByteSet {
  std::array<uint64_t, 4> bits{};

  // The bytes first .. last.
  static ByteSet range(int first, int last);
  static ByteSet of(std::string_view bytes);
  ByteSet without(const ByteSet& other) const;
  ByteSet operator&(const ByteSet& other) const;
  ByteSet operator|(const ByteSet& other) const;
  bool has(uint8_t byte) const { return (bits[byte / 64] >> (byte % 64) & 1) != 0; }
  auto operator<=>(const ByteSet&) const = default;
};

struct GrammarSymbol {
  enum class Kind : uint8_t { kEnd, kBytes, kRule } kind = Kind::kEnd;  // kEnd: of an alternative
  int32_t index = 0;  // of the byte set or of the rule
};

class ByteGrammar;

// The symbols of one alternative: Sequence(grammar).text("[").rule(value).text("]").
class GrammarSequence {
 public:
  explicit GrammarSequence(ByteGrammar& grammar) : grammar_(grammar) {}
  GrammarSequence& text(std::string_view bytes);
  GrammarSequence& one_of(const ByteSet& set);
  GrammarSequence& rule(int rule);

 private:
  friend class ByteGrammar;
  ByteGrammar& grammar_;
  std::vector<GrammarSymbol> symbols_;
};

class ByteGrammar {
 public:
  // A rule without alternatives, which matches nothing yet. `nesting`: it may be entered only while
  // fewer than kMaxJsonDepth rules are open.
  int add_rule(bool nesting = false);
  // Throws Error(kInvalidArgument) when the grammar becomes too large.
  void add(int rule, const GrammarSequence& alternative);
  GrammarSequence sequence() { return GrammarSequence(*this); }
  // A rule for one well-formed character: a byte of `ascii` or any sequence of UTF-8 beyond it
  // whose first byte is in `leads`.
  int add_character(const ByteSet& ascii, const ByteSet& leads = ByteSet::range(0xc2, 0xf4));

  // Takes out the alternatives that no text can complete, so that no beginning is a dead end.
  void prune();

  int root = 0;

  struct Rule {
    std::vector<int32_t> alternatives;  // positions of first symbols
    bool nesting = false;
  };
  const Rule& rule(int32_t index) const { return rules_[static_cast<size_t>(index)]; }
  const GrammarSymbol& symbol(int32_t position) const {
    return symbols_[static_cast<size_t>(position)];
  }
  const ByteSet& byte_set(int32_t index) const { return sets_[static_cast<size_t>(index)]; }

 private:
  friend class GrammarSequence;
  int32_t intern(const ByteSet& set);

  std::vector<Rule> rules_;
  std::vector<GrammarSymbol> symbols_;  // alternatives one after another, each with its kEnd
  std::vector<ByteSet> sets_;
  std::map<ByteSet, int32_t> set_index_;
};

}  // namespace peregrine
